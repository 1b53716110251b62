"""What the linter says in the end: counts, first examples, totals. Knows findings: no rows, no rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .findings import Finding, Kind
from .lengths import Measured
from .who_trains import Authors


@dataclass(frozen=True, slots=True)
class LintReport:
    """What was found in a data set; `print` it for a table.

    Example:
        report = lint("demonstrations.jsonl")
        report.counts          {Kind.DUPLICATE: 2}
        report.examples[Kind.DUPLICATE][0].row     17
        report.exit_status     1
    """

    name: str
    unit: str  # what rows are counted in: "line" from 1, or "row" from 0
    rows: int
    roles: Mapping[str, int]  # messages of each role
    counts: Mapping[Kind, int]  # findings of each kind; a row may have several
    examples: Mapping[Kind, tuple[Finding, ...]]  # the first ones
    measured: Measured | None = None  # tokens, where there was a tokenizer
    authors: Authors | None = None  # who wrote those of the first rows
    repaired: Mapping[str, int] = field(default_factory=dict)  # path of the repaired copy -> rows changed

    @property
    def exit_status(self) -> int:
        """0 when nothing was found, else 1."""
        return int(bool(self.counts))

    def __str__(self) -> str:
        """The totals, then each kind with its first examples, the most frequent first."""
        found = sum(self.counts.values())
        roles = ", ".join(f"{count:,} {role}" for role, count in self.roles.items())
        lines = [f"{self.name}: {self.rows:,} rows; messages: {roles or 'none'}"]
        if self.measured is not None and self.measured.rows:
            mean = self.measured.total / self.measured.rows
            longest = f"longest {self.measured.longest:,} in {self.unit} {self.measured.longest_row}"
            lines.append(f"tokens: mean {mean:,.0f}, {longest}")
        if self.authors is not None and self.authors.tried:
            lines.append(str(self.authors))
        lines += [f"{path}: written, {rows:,} rows repaired" for path, rows in self.repaired.items()]
        lines.append(f"{found:,} finding{'s' * (found != 1)}" if found else "nothing found")
        for kind, count in sorted(self.counts.items(), key=lambda pair: -pair[1]):
            lines.append(f"\n{kind:<24}{count:>10,}")
            lines += [line for example in self.examples[kind] for line in self.describe(example)]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # at the end of a notebook's cell

    def describe(self, finding: Finding) -> list[str]:
        """The lines of one example."""
        return [
            f"  {self.unit} {finding.row}: {finding.found}",
            f"      expected {finding.expected}; {finding.remedy}",
        ]
