"""Play held-out tasks and say what became of each. Knows trajectories and tasks, trains nothing.

right       the answer is the expected one
guess       answered with fewer calls than the question needs
malformed   wrote a call that could not be read, and did not recover
mistaken    called as often as needed, and answered wrong
unfinished  ran into a limit
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envmask_trl import KeptCacheSampler, RolloutLimits, Trajectory, run_rollouts

from .tasks import is_answer

OUTCOMES = ("right", "guess", "malformed", "mistaken", "unfinished")
MAX_TURN_TOKENS = 32  # the longest turn that is needed has 18
MAX_CALLS = 4  # one more than the hardest question needs
MAX_MALFORMED_CALLS = 1  # then the rollout is given up
MAX_COMPLETION_LENGTH = 320  # three calls, two weather reports and an answer have about 160


@dataclass(frozen=True, slots=True)
class Played:
    """One rollout of one task.

    Example:
        Played(calls_needed=2, calls_made=1, outcome="guess", env_share=0.6)
    """

    calls_needed: int
    calls_made: int
    outcome: str
    env_share: float  # of the completion's tokens: what the environment and the template wrote


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    *,
    tools: list[Callable],
    greedy: bool,
) -> tuple[list[Played], list[Trajectory]]:
    """One rollout for each row, sampled at temperature 1 or greedy."""
    model.eval()
    trajectories = run_rollouts(
        [row["prompt"] for row in rows],
        tokenizer=tokenizer,
        sampler=KeptCacheSampler(model, tokenizer, temperature=1.0, do_sample=not greedy),
        tools=tools,
        limits=RolloutLimits(
            max_completion_length=MAX_COMPLETION_LENGTH,
            max_turn_tokens=MAX_TURN_TOKENS,
            max_tool_calling_iterations=MAX_CALLS,
            max_malformed_calls=MAX_MALFORMED_CALLS,
        ),
    )
    return [judge(rollout, row) for rollout, row in zip(trajectories, rows, strict=True)], trajectories


def judge(rollout: Trajectory, row: dict) -> Played:
    """Name the outcome of a rollout."""
    calls_made = len(rollout.tool_results)
    if is_answer(list(rollout.messages), row["answer"]):
        outcome = "right"
    elif rollout.malformed_calls:
        outcome = "malformed"
    elif rollout.unfinished:
        outcome = "unfinished"
    else:
        outcome = "guess" if calls_made < row["calls"] else "mistaken"
    env_share = 1 - sum(rollout.env_mask) / max(1, len(rollout.env_mask))
    return Played(row["calls"], calls_made, outcome, env_share)


def success(played: list[Played], *, calls: tuple[int, ...]) -> float:
    """The share of right rollouts among those that need any of `calls` calls."""
    chosen = [rollout.outcome == "right" for rollout in played if rollout.calls_needed in calls]
    return sum(chosen) / len(chosen)


def outcome_shares(played: list[Played], *, calls: tuple[int, ...]) -> dict[str, float]:
    """The share of each outcome, such as {"right": 0.4, "guess": 0.3, ...}; sums to 1."""
    counts = Counter(rollout.outcome for rollout in played if rollout.calls_needed in calls)
    return {outcome: counts[outcome] / counts.total() for outcome in OUTCOMES}
