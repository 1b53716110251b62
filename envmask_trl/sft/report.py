"""What became of a data set's rows when they were masked. Knows counts and sentences: no tokens."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

EXAMPLES_PER_REASON = 3


class TooManyDropped(ValueError):
    """More rows were dropped than `max_drop_rate` allows; `report` says which and why."""

    def __init__(self, message: str, report: "MaskReport | None" = None):
        super().__init__(message)
        self.report = report


@dataclass(slots=True)
class MaskReport:
    """How many rows were kept, how many were dropped, why, and from which source.

    Example:
        MaskReport(rows=200, kept=199, reasons={"unbalanced_tags": 1}, sources={"react.jsonl": (200, 1)},
                   examples={"unbalanced_tags": ["row 17: an observation is never closed from ..."]},
                   cut=3, without_observation=12, tokens=90_000, trained_tokens=21_000)
    """

    rows: int = 0
    kept: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # dropped rows by `Reason`
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)  # rows and dropped rows
    examples: dict[str, list[str]] = field(default_factory=dict)
    cut: int = 0  # kept rows that `max_length` shortened
    without_observation: int = 0  # kept rows
    tokens: int = 0  # of kept rows
    trained_tokens: int = 0

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> "MaskReport":
        """The report on rows with `problem`, `source`, `is_cut`, `num_observations`, `num_tokens`, `num_trained`."""
        report = cls()
        for number, row in enumerate(rows):
            report._add(number, row)
        return report

    def _add(self, number: int, row: Mapping[str, Any]) -> None:
        self.rows += 1
        seen, dropped = self.sources.get(row["source"], (0, 0))
        self.sources[row["source"]] = (seen + 1, dropped + bool(row["problem"]))
        if row["problem"]:
            reason, _, detail = row["problem"].partition(": ")
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            examples = self.examples.setdefault(reason, [])
            if len(examples) < EXAMPLES_PER_REASON:
                examples.append(f"row {number}: {detail}")
            return
        self.kept += 1
        self.cut += bool(row["is_cut"])
        self.without_observation += not row["num_observations"]
        self.tokens += row["num_tokens"]
        self.trained_tokens += row["num_trained"]

    @property
    def dropped(self) -> int:
        return self.rows - self.kept

    @property
    def drop_rate(self) -> float:
        return self.dropped / self.rows if self.rows else 0.0

    def check(self, max_drop_rate: float) -> None:
        """Raise where nothing is left, or where more rows were dropped than `max_drop_rate` allows.

        Raises:
            TooManyDropped: a ValueError whose `report` is this one.
        """
        if self.kept and self.drop_rate <= max_drop_rate:
            return
        if not self.rows:
            raise TooManyDropped("the data set has no rows; expected at least one", self)
        ((reason, _),) = Counter(self.reasons).most_common(1)
        worst = max(self.sources, key=lambda source: self.sources[source][1])
        raise TooManyDropped(
            f"{self.dropped} of {self.rows} rows were dropped ({self.drop_rate:.1%}), most of them from {worst} and "
            f"for {reason!r}, such as {self.examples[reason][0]}; expected at most {max_drop_rate:.1%}, so repair the "
            "data or raise max_drop_rate",
            self,
        )

    def __str__(self) -> str:
        share = (
            f", {self.trained_tokens / self.tokens:.1%} of {self.tokens:,} tokens are learned" if self.tokens else ""
        )
        lines = [
            f"{self.kept} of {self.rows} rows kept ({self.cut} cut to max_length, "
            f"{self.without_observation} without an observation){share}"
        ]
        for reason, count in Counter(self.reasons).most_common():
            lines += [f"  {count} dropped: {reason}", *(f"    {example}" for example in self.examples[reason])]
        if len(self.sources) > 1:
            lines += [
                f"  {name}: {dropped} of {rows} dropped" for name, (rows, dropped) in sorted(self.sources.items())
            ]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # at the end of a notebook's cell
