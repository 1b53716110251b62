"""Is what a reward function returned one number per rollout? Knows values of any type: no rollouts, no trainer.

returned      [1.0, None, 0.5]     an array or a tensor of 3     None, 0.5, "abc", [[1.0], ...], ["1.0", ...]
read as       [1.0, None, 0.5]     its numbers                   one sentence: whose, found, expected
"""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from math import isfinite, isnan, nan
from numbers import Integral
from typing import Any, SupportsFloat

SHOWN = 60  # characters of a wrong value


def reward_values(whose: str, values: Any, count: int) -> list[float | None]:
    """The values as floats; None, "does not apply", stays None.

    Example:
        reward_values("reward function 'length'", [1, None], 2)    [1.0, None]

    Args:
        whose: begins the error: who returned the values.
        values: what was returned.
        count: the number of rollouts.

    Raises:
        ValueError: not one number or None for each rollout.
    """
    expected = f"expected a list with one number, or None, for each of {count} rollouts"
    listed = as_list(values)
    if listed is None:
        raise ValueError(f"{whose} returned {described(values)}, {expected}")
    if len(listed) != count:
        raise ValueError(f"{whose} returned {len(listed)} values, {expected}")
    return [None if value is None else number(f"{whose} gave rollout {row}", value) for row, value in enumerate(listed)]


def turn_values_of(whose: str, values: Any, *, allow_unscored: bool = False) -> list[float]:
    """One rollout's numbers, one per turn, as floats.

    Args:
        allow_unscored: None and NaN are no score, and become NaN.

    Raises:
        ValueError: no list, or an entry that is no finite number.
    """
    listed = as_list(values)
    if listed is None:
        raise ValueError(f"{whose} {described(values)}, expected a list with one number for each turn of the model")
    numbers = [
        nan if value is None and allow_unscored else number(f"{whose} at turn {turn}", value)
        for turn, value in enumerate(listed)
    ]
    if not all(isfinite(value) or (isnan(value) and allow_unscored) for value in numbers):
        remedy = ", or None where a turn has no score" if allow_unscored else ""
        raise ValueError(f"{whose} {numbers}, expected finite numbers{remedy}")
    return numbers


def number(whose: str, value: Any) -> float:
    """The value as a float: of an int, a bool, a float, or what numpy and torch make of one; a text is no number.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, SupportsFloat) and not isinstance(value, Sequence):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # of more than one entry, or too large
            pass
    raise ValueError(f"{whose} {described(value)}, expected a number")


def as_list(values: Any) -> list[Any] | None:
    """What stands in an order: a list, tuple, iterator, array or tensor; None of everything else, texts included."""
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        return None
    try:
        return list(values)
    except TypeError:  # an array or a tensor without a dimension
        return None


def described(value: Any) -> str:
    """`None`, `the str 'abc'`, `the list [1, 2]`."""
    if value is None:
        return "None"
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    return f"the {type(value).__name__} {' '.join(shown.split())}"


def is_whole(value: Any) -> bool:
    """Whether it is a whole number; True and 2.0 are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def names_of(whose: str, argument: str, names: Any) -> tuple[str, ...]:
    """Texts that were given as a list; one text alone would be read letter by letter.

    Raises:
        ValueError: it is no list of texts, or one of them is empty.
    """
    listed = list(names) if isinstance(names, Set) else as_list(names)
    if listed is None or not all(isinstance(name, str) and name for name in listed):
        raise ValueError(f"{whose} got {argument}={names!r}, expected a list of texts such as ['answer']")
    return tuple(listed)


def as_json(value: Any) -> str:
    """Equal texts for equal values, whatever the order of their keys; of what JSON cannot write, its type's name."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys of several types, or nested too deep
        return f"({type(value).__name__})"
