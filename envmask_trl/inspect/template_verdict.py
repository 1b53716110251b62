"""What was found out about a chat template, in words. Knows findings: no tokenizer and no template."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    """What a template does that somebody who trains with it should know."""

    RAISES = "raises"  # on the simplest prompt
    LIMITED_INPUT = "limited input"  # raises on something that not every rollout has
    TOOLS_NOT_SHOWN = "tools not shown"
    NO_TOOL_ROLE = "no tool role"
    NO_RESULTS = "shows no results"
    LEFT_OUT = "left out"  # of two calls or results in one turn, or the text beside a call
    DATED = "dated"  # the prompt says what day it is
    NO_OPENING = "no opening"  # the model would have to write its own header
    STOP_TOKEN = "stop token"  # a turn does not end with a token that the model samples
    UNREADABLE_CALLS = "unreadable calls"
    FORGEABLE_TURN = "forgeable turn"  # a tool's result can open a turn
    CHANGED_BLOCK = "changed block"  # the tokenizer does not give the block's text back
    THINKING_DROPPED = "thinking dropped"
    SCHEMA_MOVED = "tool schema moved"
    MESSAGES_DROPPED = "messages dropped"  # or cleared: their contents are gone
    CHANGING_HEAD = "changing head"  # what stands before the first message, such as a count or the time
    LAST_TURN_BRANCH = "last-turn branch"
    OPENING = "opening"  # what opens a turn to be written is not what opens a written one
    MERGED_TOKENS = "merged tokens"  # the text only grows, the ids do not

    @property
    def refuses(self) -> bool:
        """Whether the template cannot be trained with as things are."""
        return self in REFUSING

    @property
    def rewrites(self) -> bool:
        """Whether what a rollout holds is rendered differently later."""
        return self in REWRITING


REFUSING = (
    FindingKind.RAISES,
    FindingKind.NO_RESULTS,
    FindingKind.NO_OPENING,
    FindingKind.STOP_TOKEN,
    FindingKind.UNREADABLE_CALLS,
    FindingKind.FORGEABLE_TURN,
    FindingKind.CHANGED_BLOCK,
)
REWRITING = (
    FindingKind.THINKING_DROPPED,
    FindingKind.SCHEMA_MOVED,
    FindingKind.MESSAGES_DROPPED,
    FindingKind.CHANGING_HEAD,
    FindingKind.LAST_TURN_BRANCH,
    FindingKind.OPENING,
)


@dataclass(frozen=True, slots=True)
class TextDifference:
    """The first token at which two renderings of one conversation part, and the text around it in both.

    Example:
        TextDifference(position=31, before="assistant\\n<think>", after="assistant\\n<tool_call>")
    """

    position: int  # in tokens
    before: str  # as the rollout holds it
    after: str  # as the template renders it later

    def __str__(self) -> str:
        return f"first differing token {self.position}: {self.before!r} became {self.after!r}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a template does, as a sentence; one that refuses says what to do.

    Example:
        Finding(FindingKind.NO_TOOL_ROLE, "the template has no tool role: results are shown as a user's turn")
    """

    kind: FindingKind
    sentence: str
    difference: TextDifference | None = None

    def __str__(self) -> str:
        return f"{self.sentence} ({self.difference})" if self.difference else self.sentence


@dataclass(frozen=True, slots=True)
class TemplateVerdict:
    """Whether a tokenizer and its chat template can be trained with, and what the template does.

    Example:
        verdict = check_template(tokenizer)
        verdict.trains  # True
        verdict.appends_only  # False: verdict.kinds has what is rewritten
    """

    findings: tuple[Finding, ...] = ()
    between: str = ""  # what stands between two sampled turns; "..." where the results stand

    @property
    def trains(self) -> bool:
        return not any(finding.kind.refuses for finding in self.findings)

    @property
    def appends_only(self) -> bool:
        """Whether the text of a conversation starts with the text of each shorter one."""
        return not any(finding.kind.rewrites for finding in self.findings)

    @property
    def kinds(self) -> tuple[FindingKind, ...]:
        return tuple(finding.kind for finding in self.findings)

    @property
    def summary(self) -> str:
        """The verdict in a few words."""
        if not self.trains:
            return "refused"
        return "trains, append-only" if self.appends_only else "trains, rewrites history"

    def __str__(self) -> str:
        lines = [f"chat template: {self.summary}"]
        if self.trains:
            lines.append(f"  between two turns it writes {self.between!r}, which is never trained")
        if self.trains and not self.appends_only:
            lines.append("  history is never rendered again here, so what it rewrites moves no boundary:")
        lines += [f"  {'NOT OK' if finding.kind.refuses else 'note'}: {finding}" for finding in self.findings]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"TemplateVerdict: {self.summary}")  # at the end of a cell; `check_template` has printed the whole
