"""A reward function with a name and a range. Knows rollouts and numbers: no trainer, no rule of its own.

TRL  --prompts, completions, ..., columns-->  Reward  --Rollout-->  score  --> 0.0 | 1.0 | None   (one per rollout)
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite, isnan
from typing import Any, SupportsFloat

from .reading import Rollout, read_rollouts
from .turns import check_turn_rewards
from .values import described, number, turn_values_of

Score = Callable[[Rollout], float | None]
TurnScore = Callable[[Rollout], list[float] | None]


class Reward:
    """A TRL reward function whose values stay within a range that is known beforehand.

    Called by a trainer with keywords, it returns one number per rollout, None where it does not apply. A rollout whose
    environment failed gets None from every reward: nothing about the model follows from it.

    Example:
        polite = Reward(lambda rollout: float("please" in rollout.model_text), name="polite", low=0.0, high=1.0)
        trainer = EnvMaskGRPOTrainer(model, reward_funcs=[polite], ...)

    Args:
        score: from one rollout to its value, None where it does not apply.
        name: TRL logs it as `rewards/{name}/mean`.
        low, high: every value lies between them; one that does not is an error, since `compose` relies on it.
    """

    def __init__(self, score: Score, *, name: str, low: float, high: float):
        if not isinstance(name, str) or not name:
            raise ValueError(f"a reward has the name {described(name)}, expected a text to log it under")
        if not (is_number(low) and is_number(high) and low < high):
            raise ValueError(
                f"reward {name!r} has the range [{low!r}, {high!r}], expected two finite numbers, low < high"
            )
        if not callable(score):
            raise ValueError(f"reward {name!r} got {described(score)} to score with, expected a function of a Rollout")
        self.__name__ = name
        self.low, self.high = float(low), float(high)
        self.score = score

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__name__!r}, [{self.low:g}, {self.high:g}])"

    def __call__(self, **columns: Any) -> list[float | None]:
        rollouts = read_rollouts(columns)
        return self.checked(self.scores(rollouts, columns))

    def scores(self, rollouts: list[Rollout], columns: Mapping[str, Any]) -> list[float | None]:
        """One value per rollout, in order."""
        return [None if rollout.failed else self.score(rollout) for rollout in rollouts]

    def checked(self, values: Iterable[float | None]) -> list[float | None]:
        """The same values as floats; raises on one that is no number or outside of the range, NaN included."""
        whose = f"reward {self.__name__!r} gave rollout"
        kept = [None if value is None else number(f"{whose} {row}", value) for row, value in enumerate(values)]
        for row, value in enumerate(kept):
            if value is not None and not self.low - 1e-9 <= value <= self.high + 1e-9:
                raise ValueError(
                    f"reward {self.__name__!r} gave rollout {row} {value:g}, outside of its range "
                    f"[{self.low:g}, {self.high:g}]; give the range that it really has"
                )
        return kept


class TurnReward(Reward):
    """A reward that knows which turn earned what; what it gives the turns of a rollout sums to its value.

    Example:
        shouts = TurnReward(lambda rollout: [-float("!" in turn.text) / 9 for turn in rollout.turns], name="shouts",
                            low=-1.0, high=0.0)
        shouts(completions=completions)                    # [-0.11, 0.0]
        shouts.turn_rewards(trajectories=trajectories)     # [[0.0, -0.11], [0.0]]
    """

    def __init__(self, turn_score: TurnScore, *, name: str, low: float, high: float):
        super().__init__(self.total, name=name, low=low, high=high)
        self.turn_score = turn_score

    def total(self, rollout: Rollout) -> float | None:
        values = self.turn_score(rollout)
        if values is None:
            return None
        kept = turn_values_of(f"reward {self.__name__!r} gave a rollout", values)
        if len(kept) != len(rollout.turns):
            raise ValueError(
                f"reward {self.__name__!r} gave a rollout of {len(rollout.turns)} turns {len(kept)} turn rewards; give "
                "one number for each turn"
            )
        return sum(kept)

    def turn_rewards(self, **columns: Any) -> list[list[float] | None]:
        """Per rollout one number per turn of the model, or None where it does not apply; see `turns.py`."""
        rollouts = read_rollouts(columns)
        values = [None if rollout.failed else self.turn_score(rollout) for rollout in rollouts]
        return check_turn_rewards(self.__name__, values, [len(rollout.turns) for rollout in rollouts])


def only_together(rollout: Rollout) -> None:
    """The score of a reward that reads the columns of all rollouts."""
    raise TypeError("this reward scores the rollouts of a step together; call it with their columns, as a trainer does")


def is_number(value: Any) -> bool:
    """Whether it is a finite number; a text or a bool is none."""
    return isinstance(value, SupportsFloat) and not isinstance(value, str | bool) and isfinite(value)


def column_of(rollout: Rollout, column: str, reader: str) -> Any:
    """This rollout's entry of a dataset column; None where it has none, also as pandas says it, with NaN.

    Raises:
        ValueError: there is no such column.
    """
    if column not in rollout.row:
        raise ValueError(
            f"{reader} reads the dataset column {column!r}, found {sorted(rollout.row)}; add it to the dataset or name "
            "another one with column="
        )
    value = rollout.row[column]
    return None if isinstance(value, float) and isnan(value) else value
