"""Rewards of single turns: the contract, and how they reach earlier turns. Knows numbers: no rollouts, no trainer.

turns            call        call        answer
dense            0.5         0.0         1.0         what each turn itself earned
returned, 0.5    0.75        0.5         1.0         r_t + discount * returned_{t+1}
sparse           0.0         0.0         1.5         their sum, at the end
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from .values import as_list, described, turn_values_of

Density = Literal["sparse", "dense", "returned"]


@runtime_checkable
class GivesTurnRewards(Protocol):
    """What a reward function has, next to being callable, if it knows which turn earned what.

    Example:
        reward.turn_rewards(trajectories=trajectories, prompts=prompts, answer=answers)
        [[0.5, 0.0, 1.0], None]          # one list per rollout, one number per turn of the model; None: does not apply

    It gets the keywords that the reward function got.
    """

    def turn_rewards(self, **columns: Any) -> list[list[float] | None]: ...


def check_turn_rewards(
    name: str, values: Any, num_turns: Sequence[int], *, allow_unscored: bool = False
) -> list[list[float] | None]:
    """What `turn_rewards` of the function `name` returned, as lists of floats.

    Args:
        allow_unscored: a turn may have no score, as None or NaN, which becomes NaN; not where scores are summed.

    Raises:
        ValueError: another number of rollouts, or of turns in one, or an entry that is no finite number.
    """
    listed = as_list(values)
    if listed is None or len(listed) != len(num_turns):
        found = described(values) if listed is None else f"{len(listed)} entries"
        raise ValueError(
            f"turn_rewards of {name} returned {found} for {len(num_turns)} rollouts, expected a list with one list of "
            "numbers, or None, for each"
        )
    kept: list[list[float] | None] = []
    for row, (given, expected) in enumerate(zip(listed, num_turns, strict=True)):
        whose = f"turn_rewards of {name} gave rollout {row}"
        turns = None if given is None else turn_values_of(whose, given, allow_unscored=allow_unscored)
        if turns is not None and len(turns) != expected:
            raise ValueError(f"{whose} {len(turns)} turn rewards, expected one for each of its {expected} turns")
        kept.append(turns)
    return kept


def at_density(turns: Sequence[float], density: Density, discount: float) -> list[float]:
    """The rewards of one rollout's turns in the form asked for.

    Example:
        at_density([0.5, 0.0, 1.0], "returned", 0.5)    [0.75, 0.5, 1.0]
        at_density([0.5, 0.0, 1.0], "sparse", 0.5)      [0.0, 0.0, 1.5]
    """
    if density == "dense" or not turns:
        return list(turns)
    if density == "sparse":
        return [0.0] * (len(turns) - 1) + [sum(turns)]
    return returned(turns, discount)


def returned(turns: Sequence[float], discount: float) -> list[float]:
    """R_t = r_t + discount * R_{t+1}: what a turn earned and what followed. `[0, 0, 1]`, 0.5 -> `[0.25, 0.5, 1]`."""
    following, reversed_returns = 0.0, []
    for value in reversed(turns):
        following = value + discount * following
        reversed_returns.append(following)
    return reversed_returns[::-1]
