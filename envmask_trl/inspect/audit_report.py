"""What an audit found, in plain words. Knows sentences and numbers: no model, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .gradient_report import PairedReport


@dataclass(frozen=True, slots=True)
class Check:
    """One question, its answer, and what it rests on.

    Example:
        Check("environment tokens are not learned", True, "568 tokens, their part of the gradient is exactly 0")
    """

    name: str
    passed: bool | None  # None: could not be asked, `says` tells why
    says: str

    def __str__(self) -> str:
        mark = {True: "ok     ", False: "FAULT  ", None: "not run"}[self.passed]
        return f"{mark} {self.name}: {self.says}"


@dataclass(frozen=True, slots=True)
class Surprise:
    """How unexpected one observation is to the model: read only, it is in no loss.

    Example:
        Surprise(row=3, start=17, tokens=9, nll=2.4, text='{"temperature": 7}')
    """

    row: int
    start: int  # its first token's position in the completion
    tokens: int
    nll: float  # mean of -log p(token), in nats
    text: str = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The checks, the paired report and the surprise of each observation.

    Example:
        report = audit("runs/agent/rollouts", model=model, tokenizer=tokenizer)
        print(report)
        assert report.passed
    """

    title: str
    checks: tuple[Check, ...]
    paired: PairedReport | None = None
    surprises: tuple[Surprise, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def passed(self) -> bool:
        """No check failed. One that could not be run is not a failure; `checks` has it with `passed=None`."""
        return not self.faults

    def __str__(self) -> str:
        lines = [self.title, *(f"  {check}" for check in self.checks)]
        if self.paired is not None:
            lines.append(f"  report  mask on and off: {self.paired}")
        if self.surprises:
            lines.append(f"  report  surprise of observations: {surprise_summary(self.surprises)}")
        return "\n".join([*lines, *(f"  note    {note}" for note in self.notes)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # at the end of a notebook's cell


class AuditFailed(ValueError):
    """An audit found a fault; `report` is the whole report.

    Example:
        try: trainer.train()
        except AuditFailed as failure: print(failure.report)
    """

    def __init__(self, report: AuditReport):
        found = f"{len(report.faults)} fault(s)" if report.faults else "none in this process, but one in another"
        super().__init__(f"faults found by the audit: {found}\n{report}")
        self.report = report


def surprise_summary(surprises: Sequence[Surprise]) -> str:
    tokens = sum(surprise.tokens for surprise in surprises)
    mean = sum(surprise.nll * surprise.tokens for surprise in surprises) / tokens
    most = max(surprises, key=lambda surprise: surprise.nll)
    text = f" ({most.text!r})" if most.text else ""
    return (
        f"{len(surprises)} of them, {tokens} tokens, {mean:.2f} nats a token; "
        f"the most unexpected is that of row {most.row} at token {most.start}, {most.nll:.2f} nats a token{text}"
    )
