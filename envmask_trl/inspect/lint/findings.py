"""The nouns of the linter: what can be wrong, one thing that is, and how many of each. Knows no rows, no rules."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

EXAMPLES = 3  # kept of each kind, so that the memory does not grow with the faults
MAX_ECHO = 80  # characters of the user's data in a finding


class Kind(StrEnum):
    """What can be wrong with a row."""

    BROKEN_JSON = "broken-json"  # a line, a column or the text of a call that is not JSON
    COLUMNS = "columns"  # no conversation where one is expected
    ROLES = "roles"  # a role that is missing, unknown or out of turn
    CONTENT = "content"  # a message without text where it needs one, or with something else
    BROKEN_CALL = "broken-call"  # a call without a name or without an object of arguments
    MISSING_TOOL_TURN = "missing-tool-turn"  # calls, and not one result before the next message
    CALL_WITHOUT_RESULT = "call-without-result"  # some of a turn's calls have a result, others do not
    RESULT_WITHOUT_CALL = "result-without-call"
    IDS = "ids"  # ids or names of results that are not those of the calls
    ENDS_IN_TOOL = "ends-in-tool"  # nobody answers the last observation
    ENDS_IN_CALL = "ends-in-call"  # the last calls are never answered
    UNKNOWN_TOOL = "unknown-tool"  # a call of a tool that the row does not have
    ARGUMENTS = "arguments"  # arguments that the tool's schema does not allow
    TOOL_SCHEMA = "tool-schema"  # a tool whose schema is none
    TOOLS_DIFFER = "tools-differ"  # the row's tools are not those that were given
    ANSWER_IN_OBSERVATION = "answer-in-observation"  # the answer stands in a tool's text, and the model never says it
    NULL_PADDING = "null-padding"  # keys that Arrow has filled with null because another row has them
    MIXED_TYPES = "mixed-types"  # an argument that is text in one row and a number in another: Arrow refuses both
    DUPLICATE = "duplicate"
    TEMPLATE = "template"  # the chat template raises
    DROPPED_BY_TEMPLATE = "dropped-by-template"  # the chat template leaves out what a message says
    CONTROL_TOKENS = "control-tokens"  # the text of a control token in what a tool or a user said
    TOO_LONG = "too-long"  # more tokens than the budget


class Problem(NamedTuple):
    """What a rule found, before it is known in which row.

    Example:
        Problem(Kind.ROLES, found="message 0 has the role 'bot'", expected="system, user, assistant or tool",
                remedy="rename it")
    """

    kind: Kind
    found: str
    expected: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one row.

    Example:
        Finding(Kind.DUPLICATE, row=17, found="the same conversation as line 3", expected="each one once",
                remedy="remove one of them")
    """

    kind: Kind
    row: int  # line of the file, counted from 1, or row of the data set, counted from 0
    found: str
    expected: str
    remedy: str


@dataclass(slots=True)
class Findings:
    """Counts per kind and the first examples; everything else about a fault is forgotten."""

    ignored: Collection[Kind] = ()
    counts: Counter[Kind] = field(default_factory=Counter)
    examples: dict[Kind, list[Finding]] = field(default_factory=dict)

    def add(self, row: int, problem: Problem) -> None:
        if problem.kind in self.ignored:
            return
        self.counts[problem.kind] += 1
        first = self.examples.setdefault(problem.kind, [])
        if len(first) < EXAMPLES:
            first.append(Finding(problem.kind, row, *problem[1:]))


def to_kinds(names: Collection[str]) -> frozenset[Kind]:
    """The kinds of these names.

    Raises:
        ValueError: there is no such kind; says which there are.
    """
    known: Mapping[str, Kind] = {str(kind): kind for kind in Kind}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"ignore has {unknown[0]!r}, which is no kind of finding; expected any of {', '.join(known)}")
    return frozenset(known[name] for name in names)


def echo(value: object) -> str:
    """The value's repr, cut to a length that fits a line."""
    text = repr(value)
    return text if len(text) <= MAX_ECHO else f"{text[: MAX_ECHO - 3]}..."
