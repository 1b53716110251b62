"""What a benchmark found: figures with their bars, and the checks that both sides did the same. Knows numbers only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .timing import Spent
from .trainers import Step

TOLERANCE = 1e-5  # of a loss, absolute, and of gradients, relative to their norm; in float32


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; `bar` is what it is hoped to be at least, or with `at_most` at most.

    Example:
        Figure("whole step", theirs=9.0, ours=3.0, value=3.0, unit="x", bar=3.0, in_cpu_time=2.9)
    """

    name: str
    value: float
    unit: str
    theirs: float | None = None
    ours: float | None = None
    bar: float | None = None
    at_most: bool = False
    in_cpu_time: float | None = None  # the value in seconds of the processor, which a busy machine disturbs less

    @property
    def reached(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass(frozen=True, slots=True)
class Check:
    """Whether something was equal, and by how much not.

    Example:
        Check("gradients", difference=4e-7, tolerance=1e-5)
    """

    name: str
    difference: float
    tolerance: float

    @property
    def equal(self) -> bool:
        return self.difference <= self.tolerance


@dataclass(slots=True)
class Result:
    """All of one letter. `series` are lines of a plot: name -> [[x, y], ...]."""

    letter: str
    title: str
    figures: list[Figure]
    checks: list[Check] = field(default_factory=list)
    series: dict[str, list[list[float]]] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    steps: int = 1  # of each side, whose medians the times are


def ratio(name: str, theirs: float, ours: float) -> Figure:
    """How many times as much TRL takes."""
    return Figure(name, theirs / ours, "x", theirs, ours)


def time_ratio(name: str, theirs: Spent, ours: Spent, *, bar: float | None = None) -> Figure:
    """How many times as long TRL takes."""
    return Figure(
        name, theirs.wall_s / ours.wall_s, "x", theirs.wall_s, ours.wall_s, bar, in_cpu_time=theirs.cpu_s / ours.cpu_s
    )


def same_step(theirs: Step, ours: Step, *, tolerance: float = TOLERANCE) -> list[Check]:
    """That both played the same rollouts and came to the same loss and gradients."""
    return [
        Check("rollouts that differ", len(theirs.rows ^ ours.rows), 0),
        Check("loss", abs(theirs.loss - ours.loss), tolerance),
        Check("gradients", relative_difference(theirs.gradients, ours.gradients), tolerance),
    ]


def relative_difference(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    """The norm of the difference of all gradients over their norm."""
    assert set(expected) == set(found)
    difference = sum((found[name].double() - value.double()).square().sum().item() for name, value in expected.items())
    return float((difference / sum(value.double().square().sum().item() for value in expected.values())) ** 0.5)


def lines(values: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[float(x), float(y)] for x, y in values]
