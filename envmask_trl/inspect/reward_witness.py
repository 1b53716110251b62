"""Remembers what each reward function was shown and what it answered. Knows nothing of what becomes of the answers."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class RewardWitness:
    """Stands between a trainer and its reward functions until `release`; a reward model (a module) is not watched.

    Example:
        witness = RewardWitness(trainer)
        ...                                   # the trainer scores its rollouts
        witness.release()
        witness.answers                       # {0: (((10, 11), ...), [1.0, ...])}: function, completions, rewards
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.functions = trainer.reward_funcs
        self.answers: dict[int, tuple[tuple[tuple[int, ...], ...], list[float]]] = {}
        trainer.reward_funcs = [
            function if isinstance(function, nn.Module) else self.watched(number, function)
            for number, function in enumerate(self.functions)
        ]

    def release(self) -> None:
        self.trainer.reward_funcs = self.functions

    def watched(self, number: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; its last answer is kept."""

        def keep(columns: dict[str, Any], values: Sequence[float | None]) -> Sequence[float | None]:
            shown = tuple(tuple(ids) for ids in columns["completion_ids"])
            self.answers[number] = shown, [float("nan") if value is None else float(value) for value in values]
            return values

        async def later(**columns: Any) -> Any:
            return keep(columns, await function(**columns))

        def now(**columns: Any) -> Any:
            return keep(columns, function(**columns))

        return later if is_async(function) else now

    def rewards(self, of_trainer: Tensor) -> Tensor:
        """The answers as [B, F], the trainer's own values where a function was not watched."""
        rewards = of_trainer.clone()
        for number, (_, values) in self.answers.items():
            rewards[:, number] = rewards.new_tensor(values)
        return rewards

    def fault(self, completion_ids: Sequence[tuple[int, ...]], of_trainer: Tensor) -> str:
        """A sentence if a function was shown other rows, or its answers stand at other rows; empty if all is well."""
        for number, (shown, values) in self.answers.items():
            for row, (ids, expected) in enumerate(zip(shown, completion_ids, strict=True)):
                if ids != expected:
                    return f"reward function {number} was shown as row {row} a completion that is not of that rollout"
            kept = of_trainer[:, number]
            wrong = ~torch.isclose(kept, kept.new_tensor(values), equal_nan=True)
            if wrong.any():
                row = int(wrong.nonzero()[0])
                return (
                    f"reward function {number} gave rollout {row} a reward of {values[row]:.4g}, "
                    f"but the trainer has {kept[row].item():.4g} for it"
                )
        return ""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine: a function, an object with a call, or a partial of either."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
