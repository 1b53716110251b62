"""Says once, in a sentence with a remedy, when a run looks ill. Knows facts of rollouts and rewards: no model, no loss.

reward is constant          in each group, STEPS generations in a row
all rollouts are cut        every one of a generation was ended from outside
tool use collapses          STEPS generations in a row have less than a tenth of the calls that were made before
the model plays the tools   its own turns contain what only the chat template may write
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..trajectory import StopReason
from .row_facts import RowFacts

STEPS = 5  # generations in a row, before a thing that may be chance is a symptom
COLLAPSED = 0.1  # of the calls per rollout that there once were
ENOUGH_CALLS = 0.1  # per rollout: below it, tools were never used so much that their use could collapse

REMEDIES = {
    StopReason.LENGTH: "raise max_completion_length or max_turn_tokens, or check that the model knows its stop token",
    StopReason.MAX_TURNS: "raise max_tool_calling_iterations, or show the model how an answer ends a task",
    StopReason.CONTEXT_FULL: "lower max_observation_tokens or raise max_completion_length",
    StopReason.PROMPT_TOO_LONG: "shorten the prompts or the tools' descriptions, or use a model with a longer context",
    StopReason.MALFORMED: "start from a model that writes this template's calls, or raise max_malformed_calls",
    StopReason.ENV_ERROR: "look at the tools' errors in the saved rollouts: the environment fails",
}


class Symptoms:
    """Watches the generations of one run.

    Example:
        symptoms = Symptoms(logger.warning)
        symptoms.watch_rollouts(facts)                 # after each generation
        symptoms.watch_rewards(rewards, group_size=8)  # [N, F], when they are scored

    Args:
        say: told each symptom once.
    """

    def __init__(self, say: Callable[[str], object]):
        self.say = say
        self._said: set[str] = set()
        self._constant_steps = 0
        self._calls: deque[float] = deque(maxlen=STEPS)  # per rollout, of the latest generations
        self._most_calls = 0.0  # the largest mean of `_calls` so far

    def watch_rollouts(self, facts: Sequence[RowFacts]) -> None:
        """What can be seen in the rollouts of one generation, of all processes."""
        if all(row.unfinished for row in facts):
            reason, count = Counter(row.stop_reason for row in facts).most_common(1)[0]
            self._once(
                "cut",
                f"all {len(facts)} rollouts of a step were ended from outside, {count} of them by {reason}: "
                f"{REMEDIES[reason]}",
            )
        errors = [row.error for row in facts if row.error]
        if errors:
            self._once(
                "failed",
                f"the environment failed in {len(errors)} of {len(facts)} rollouts, first with {errors[0]}: "
                "void_policy says what such rollouts are used for (watch env_mask/stop/env_error)",
            )
        playing = sum(row.plays_environment for row in facts)
        if playing:
            self._once(
                "plays",
                f"in {playing} of {len(facts)} rollouts the model writes observations itself, which are trained as its "
                "own words: add the token that ends a call to model.generation_config.eos_token_id, or pay nothing for "
                "such rollouts (watch env_mask/plays_environment_share)",
            )
        self._watch_calls(sum(len(row.calls) for row in facts) / len(facts))

    def watch_rewards(self, rewards_per_func: Tensor, *, group_size: int) -> None:
        """Whether any reward tells the rollouts of a group apart.

        Args:
            rewards_per_func: [N, F], of all processes, in groups of `group_size` rows; NaN where none was given.
        """
        groups = rewards_per_func.unflatten(0, (-1, group_size))  # [G, group_size, F]
        lowest = groups.masked_fill(groups.isnan(), torch.inf).amin(dim=1)
        highest = groups.masked_fill(groups.isnan(), -torch.inf).amax(dim=1)
        is_constant = not (highest > lowest).any()
        self._constant_steps = self._constant_steps + 1 if is_constant else 0
        if self._constant_steps == STEPS:
            self._once(
                "constant",
                f"for {STEPS} steps the rewards of each group were all the same, so nothing is learned: choose easier "
                "or harder tasks, raise temperature or num_generations, or add a reward for a part of the way",
            )

    def _watch_calls(self, calls: float) -> None:
        self._calls.append(calls)
        if len(self._calls) < STEPS:
            return
        self._most_calls = max(self._most_calls, sum(self._calls) / STEPS)
        if self._most_calls >= ENOUGH_CALLS and max(self._calls) < COLLAPSED * self._most_calls:
            self._once(
                "calls",
                f"tool use collapses, from {self._most_calls:.2g} calls per rollout to {calls:.2g}: look whether "
                "rollouts without calls earn as much, pay for what only a tool can tell, lower learning_rate or raise "
                "beta",
            )

    def _once(self, symptom: str, sentence: str) -> None:
        if symptom not in self._said:
            self._said.add(symptom)
            self.say(sentence)
