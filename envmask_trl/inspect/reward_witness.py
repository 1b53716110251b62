"""Remembers what each reward function was shown and what it answered. Knows nothing of what becomes of the answers.

Each is asked twice more, with blank observations and with observations that say what the dataset's columns say, the
gold answer among them: one that answers otherwise pays for what the environment wrote.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..rewards.functions import is_async

NOT_OF_THE_DATASET = frozenset(
    {"prompts", "completions", "completion_ids", "completion_texts", "model_texts", "trajectories", "stop_reasons"}
    | {"unfinished", "cut_observations", "environments"}
)


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
        self.otherwise: dict[int, list[list[float]]] = {}  # the answers to the same rows with other observations
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
            self.answers[number] = shown, numbers(values)
            return values

        async def later(**columns: Any) -> Any:
            for other in with_other_observations(columns):
                with self.aside(number, other) as answers:
                    answers[:] = numbers(await function(**other))
            return keep(columns, await function(**columns))

        def now(**columns: Any) -> Any:
            for other in with_other_observations(columns):
                with self.aside(number, other) as answers:
                    answers[:] = numbers(function(**other))
            return keep(columns, function(**columns))

        return later if is_async(function) else now

    def rewards(self, of_trainer: Tensor) -> Tensor:
        """The answers as [B, F], the trainer's own values where a function was not watched."""
        rewards = of_trainer.clone()
        for number, (_, values) in self.answers.items():
            rewards[:, number] = rewards.new_tensor(values)
        return rewards

    @contextmanager
    def aside(self, number: int, columns: dict[str, Any]) -> Iterator[list[float]]:
        """Where the answers to these columns go; they stay NaN if the function cannot do with such observations."""
        answers = [float("nan")] * len(columns["completion_ids"])
        self.otherwise.setdefault(number, []).append(answers)
        with same_random_numbers(), suppress(Exception):
            yield answers

    def notes(self) -> list[str]:
        """A sentence for each function that answers otherwise when observations are others."""
        said = []
        for number, answers in self.otherwise.items():
            values = self.answers[number][1]
            same = torch.isclose(torch.tensor([values]), torch.tensor(answers), equal_nan=True)  # [2, B]
            moved = int((~same).any(dim=0).sum())
            if moved:
                name = self.trainer.reward_func_names[number]
                said.append(
                    f"reward function {number} ({name}) reads observations: {moved} of {len(values)} rollouts get "
                    "another reward when what the environment wrote is blank, or is what the dataset's columns say; if "
                    "that is not meant, read model_texts"
                )
        return said

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


def numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def with_other_observations(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """The columns with blank observations, and with those that tell; none where nobody but the model wrote.

    Who wrote is not known of the rows of a rollout_func.
    """
    if columns.get("model_texts") == columns.get("completion_texts"):
        return []
    rows = len(columns["model_texts"])
    given = [values for name, values in columns.items() if name not in NOT_OF_THE_DATASET and isinstance(values, list)]
    columns_of_rows = zip(*(values for values in given if len(values) == rows), strict=True)
    told = [" ".join(map(str, row)) for row in columns_of_rows] or [""] * rows
    return [with_observations(columns, texts) for texts in ([""] * rows, told)]


def with_observations(columns: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """What a reward function is given, with these texts as results of tools; it logs nothing this time.

    The ids and the trajectories stay: who reads those has to tell the authors apart anyway.
    """

    def rewritten(completion: Any, text: str, model_text: str) -> Any:
        if isinstance(completion, str):
            return text + model_text
        return [{**message, "content": text} if message["role"] == "tool" else message for message in completion]

    silent: dict[str, Any] = {
        name: lambda *args, **kwargs: None for name in ("log_extra", "log_metric") if name in columns
    }
    observed = map(str.__ne__, columns["completion_texts"], columns["model_texts"])
    texts = [text if is_observed else "" for text, is_observed in zip(texts, observed, strict=True)]
    rows = [*zip(columns["completions"], texts, columns["model_texts"], strict=True)]
    completion_texts = [text + model_text for _, text, model_text in rows]
    return {**columns, **silent, "completions": [rewritten(*row) for row in rows], "completion_texts": completion_texts}


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """What is drawn inside, by a reward that draws, is drawn again afterwards."""
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
