"""Means over few seeds, their intervals, and a paired test. Knows numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import isclose, nan, sqrt
from statistics import mean, stdev

# Student's t at 0.975 for 1, 2, ... degrees of freedom (any table of it); beyond, the normal's 1.96 is 2 % too small
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and the half width of its 95 % interval, by Student's t; NaN with one seed.

    Example:
        Interval(mean=0.86, half=0.05)
    """

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.half != self.half else f"{self.mean:.2f} ± {self.half:.2f}"


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of `values`, one per seed."""
    if len(values) == 1:
        return Interval(values[0], nan)
    t = T_975[min(len(values) - 1, len(T_975)) - 1]
    return Interval(mean(values), t * stdev(values) / sqrt(len(values)))


def smoothed(values: Sequence[float], width: int = 5) -> list[float]:
    """The mean of each value and of the `width - 1` before it."""
    return [sum(values[max(0, end - width) : end]) / min(end, width) for end in range(1, len(values) + 1)]


def sign_flip_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of the exact paired sign-flip permutation test (Fisher, 1935).

    If the two arms did not differ, each seed's difference could as well have had the other sign; p is the share of the
    2^n choices of signs whose mean is at least as far from 0 as the one that was found. With n seeds it is at least
    2 / 2^n: 0.125 for 4, 0.0078 for 8.

    Example:
        sign_flip_p([0.4, 0.5, 0.3, 0.6]) -> 0.125
    """
    found = abs(sum(differences))
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(value > found or isclose(value, found, abs_tol=1e-12) for value in sums) / len(sums)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927), which stays within 0 and 1 and has a width at 0 of n too.

    Example:
        wilson(0, 48) -> (0.0, 0.074)
    """
    z = 1.959964  # the normal's 97.5 % quantile
    share, squared = successes / trials, z * z / trials
    centre = (share + squared / 2) / (1 + squared)
    half = z * sqrt(share * (1 - share) / trials + squared / (4 * trials)) / (1 + squared)
    return max(0.0, centre - half), min(1.0, centre + half)
