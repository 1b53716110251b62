"""Credit by turn in a trainer: collects what turns were scored, puts an advantage on every token. Knows the order."""

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .credit import Scaling, discounted_returns, per_token, step_advantages, turn_advantages
from .loss_inputs import Batch
from .turn_scores import RowTurns, gather_turns, turn_values

if TYPE_CHECKING:
    from .trainer import EnvMaskGRPOTrainer

TRL_NAMES = ("prompt", "completion", "completion_ids")  # columns that TRL gives under other names


class TurnCredit:
    """The credit of one trainer; with `credit="outcome"` it does nothing, and the advantages are TRL's.

    Example:
        credit = TurnCredit(trainer)
        credit.score(inputs, given)   # one collective: on every process, once a generation
        credit.assign(batch)          # none; batch["advantages"] is [B, C] from here on

    Raises:
        ValueError: credit by turn for a rollout function, which does not say what turns it took.
    """

    def __init__(self, trainer: "EnvMaskGRPOTrainer"):
        self.trainer = trainer
        self.functions: list[Any] = list(trainer.reward_funcs)
        self.rows: list[RowTurns] = []  # of all processes
        self.is_silent = trainer.args.credit != "turn"  # a warning is given once
        if trainer.args.credit == "gigpo" and trainer.multi_objective_aggregation == "normalize_then_sum":
            trainer.step_log.warn(
                "multi_objective_aggregation='normalize_then_sum' holds for the outcome's part of credit='gigpo'; in "
                "the part of the states the rewards are summed first"
            )
        if self.by_turn and trainer.rollout_func is not None:
            raise ValueError(
                f"credit is {trainer.args.credit!r}, which needs the turns of each rollout, but a rollout_func returns "
                "none; use credit='outcome'"
            )

    @property
    def by_turn(self) -> bool:
        return bool(self.trainer.args.credit != "outcome")

    def score(self, inputs: list[dict[str, Any]], given: dict[str, Any]) -> None:
        """Ask for the scores of turns, with the keywords that TRL makes of its inputs for the reward functions."""
        if not self.by_turn:
            return
        trainer = self.trainer
        columns = {name: [row[name] for row in inputs] for name in inputs[0] if name not in TRL_NAMES}
        keywords = {**columns, **given, "trainer_state": trainer.state}
        if trainer.environments is not None:
            keywords["environments"] = trainer.environments
        self.rows = gather_turns(
            self.functions,
            trainer.reward_func_names,
            trainer.trajectories,
            environments=trainer.environments,
            dropped=trainer.columns["dropped"],
            keywords=keywords,
        )
        if not self.is_silent and all(scores is None for row in self.rows for scores in row.scores):
            self.is_silent = True
            trainer.step_log.warn(
                "credit='turn', but no reward function has turn_rewards and no environment get_turn_rewards: every "
                "turn gets its rollout's reward, which is credit='outcome'"
            )

    def assign(self, batch: Batch) -> None:
        """Replace TRL's advantage per rollout by one per token."""
        if not self.by_turn:
            return
        trainer, columns = self.trainer, self.trainer.columns
        advantages = trainer.own_rows(self.advantages(), len(trainer.trajectories))  # [B, K]
        if trainer.args.credit == "gigpo":
            advantages = batch["advantages"].unsqueeze(1) + trainer.args.step_advantage_weight * advantages
        turns = columns["turn_index"]
        if not trainer.args.mask_env_tokens:  # an observation that is trained shares the credit of the turn it answers
            turns = [list(accumulate(row, max)) for row in turns]
        batch["advantages"] = per_token(advantages, turns, batch["completion_ids"].size(1))

    def advantages(self) -> Tensor:
        """Of the turns of all processes, [N, K]."""
        trainer, args = self.trainer, self.trainer.args
        assert trainer.rewards_per_func is not None
        rewards = trainer.rewards_per_func
        group = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        scaling = Scaling(
            weights=torch.cat([trainer.reward_weights.to(rewards.device), rewards.new_ones(1)]),
            group_size=int(group or 1),
            scale_rewards=trainer.scale_rewards,
            aggregation=trainer.multi_objective_aggregation,
        )
        values = turn_values(self.rows, rewards, at_end=args.credit != "turn")
        if args.credit != "turn":
            values = discounted_returns(values, args.turn_discount)
        if args.credit != "gigpo":
            return turn_advantages(values, scaling)
        states = [row.states for row in self.rows]
        trainer.log_value("credit/compared_turns", compared_share(states, values, scaling.group_size))
        return step_advantages(values, states, scaling)


def compared_share(states: list[tuple[str, ...]], values: Tensor, group_size: int) -> float:
    """The share of turns whose state another turn of the group was in: without any, GiGPO is GRPO.

    A rollout without any score, as one that was dropped, is compared with none. `values`: [N, K, F].
    """
    has_score = (~values.isnan()).flatten(1).any(dim=1).tolist()
    met: dict[tuple[int, str], int] = {}
    for row, names in enumerate(states):
        for name in names if has_score[row] else ():
            met[row // group_size, name] = met.get((row // group_size, name), 0) + 1
    return sum(count for count in met.values() if count > 1) / max(sum(met.values()), 1)


def saved_advantages(batch: Batch, lengths: list[int]) -> list[Any]:
    """As they are written down: a number per rollout, or one per token of the completion, 0 behind where it was cut."""
    values = batch["advantages"].tolist()
    if batch["advantages"].dim() == 1:
        return list(values)
    return [(row + [0.0] * length)[:length] for row, length in zip(values, lengths, strict=True)]
