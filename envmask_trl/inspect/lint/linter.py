"""Runs all rules over a data set, one row at a time. Knows the order of the rules, none of what they say."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .answers import check_answer
from .calls import Calls, check_turns, read_calls
from .conversation import Conversation, check_contents, check_roles, read_conversation
from .findings import Findings, Kind, Problem, to_kinds
from .lengths import Ruler
from .memory import SeenRows, SeenTypes
from .padding import Stripped
from .repair import repaired_copy
from .report import LintReport
from .rows import Row, read_rows
from .tool_schemas import Bookshelf, SchemaOrFunction, ToolBook, read_tools, to_schemas

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def lint(
    data: str | os.PathLike | Iterable[Mapping[str, Any]],
    *,
    tools: Sequence[SchemaOrFunction] | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    max_length: int | None = None,
    answer_column: str = "answer",
    ignore: Collection[str] = (),
    fix: str | os.PathLike | None = None,
) -> LintReport:
    """Find what is wrong with conversations before they train anything; see `Kind` for all that is looked for.

    Rows are read one at a time and forgotten; only 16 bytes of each are kept, to find those that occur twice.

    Args:
        data: a `.jsonl` or `.parquet` file, a `datasets.Dataset` or `IterableDataset`, or a list of rows. The
            conversation is in the column `messages`, `conversation`, `conversations` or `prompt` (and `completion`);
            a column `tools` has the row's tools as JSON schemas, or as JSON text of them.
        tools: functions or JSON schemas, for rows without tools of their own. Rows whose own differ are reported.
        tokenizer: one with a chat template; rows are rendered with it, and counted.
        max_length: tokens that a row may have, prompt included. Needs a tokenizer.
        answer_column: the right answer, where rows have one.
        ignore: kinds of findings that are left out, such as "ends-in-call".
        fix: path of a new JSONL file: a copy without the nulls that Arrow has put in. Other faults are kept.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: data, max_length, ignore or fix cannot be used as given; says why.

    Example:
        print(lint("demonstrations.jsonl", tools=[weather], tokenizer=tokenizer, max_length=2048))
    """
    if max_length is not None and (tokenizer is None or max_length < 1):
        raise ValueError(f"max_length is {max_length}; expected a positive number of tokens, and a tokenizer to count")
    if tokenizer is not None and not tokenizer.chat_template:
        raise ValueError("the tokenizer has no chat template to render rows with; set one, or lint without a tokenizer")
    findings = Findings(to_kinds(ignore))
    linter = Linter(tools, Ruler(tokenizer, max_length) if tokenizer is not None else None, answer_column)
    rows = read_rows(data)
    repaired = 0
    with repaired_copy(fix, data) if fix is not None else nullcontext() as write:
        for row in rows:
            for number, problem in linter.check(row):
                findings.add(number, problem)
            if write is not None:
                write(row, linter.repaired)
                repaired += linter.repaired is not None
    for number, problem in linter.finish():
        findings.add(number, problem)
    if not linter.rows:
        findings.add(0, Problem(Kind.COLUMNS, "there is no row", "at least one", "look whether this is the right file"))
    return make_report(data, linter, findings, {} if fix is None else {str(fix): repaired})


def make_report(data: Any, linter: "Linter", findings: Findings, repaired: Mapping[str, int]) -> LintReport:
    is_file = isinstance(data, str | os.PathLike)
    return LintReport(
        name=str(data) if is_file else type(data).__name__,
        unit="line" if is_file and not str(data).endswith(".parquet") else "row",
        rows=linter.rows,
        roles=dict(linter.roles.most_common()),
        counts=findings.counts,
        examples={kind: tuple(first) for kind, first in findings.examples.items()},
        measured=linter.ruler.measured if linter.ruler else None,
        authors=linter.ruler.authors if linter.ruler else None,
        repaired=repaired,
    )


class Linter:
    """All rules, and what they keep from row to row."""

    def __init__(self, tools: Sequence[SchemaOrFunction] | None, ruler: Ruler | None, answer_column: str):
        self._shelf = Bookshelf()
        self.given = None if tools is None else to_schemas(tools)
        self.given_book = None if self.given is None else self._shelf.book_of(self.given)
        self.ruler = ruler
        self.answer_column = answer_column
        self.rows = 0
        self.roles: Counter[str] = Counter()
        self.repaired: dict[str, Any] | None = None  # the last row without its padding, if it had any
        self._seen_rows = SeenRows()
        self._seen_types = SeenTypes()
        if self.given_book is not None and self.given_book.problems:
            raise ValueError(f"tools: {self.given_book.problems[0].found}; expected JSON schemas or functions")

    def check(self, row: Row) -> Iterator[tuple[int, Problem]]:
        """(row, problem) for all that can be said by now; with a tokenizer, of earlier rows too."""
        self.rows += 1
        self.repaired = None
        try:
            yield from self._check(row)
        except RecursionError:
            self.repaired = None
            found = "too many brackets inside each other"
            yield row.number, Problem(Kind.BROKEN_JSON, found, "fewer than some hundred", "repair or drop the row")

    def _check(self, row: Row) -> Iterator[tuple[int, Problem]]:
        if isinstance(row.values, Problem):
            yield row.number, row.values
            return
        values = row.values
        if row.may_have_nulls:
            stripped = Stripped(values, self._shelf, self.given_book)
            yield from ((row.number, problem) for problem in stripped.problems())
            values = stripped.row
            self.repaired = values if stripped.padded else None
        conversation = read_conversation(values)
        if isinstance(conversation, Problem):
            yield row.number, conversation
            return
        tools = read_tools(values.get("tools"))
        problems = list(self._problems(row.number, values, conversation, tools))
        yield from ((row.number, problem) for problem in problems)
        self._seen_rows.add(row.number, values, conversation)
        if self.ruler is not None and not any(problem.kind in UNRENDERABLE for problem in problems):
            shown = tools if not isinstance(tools, Problem) and tools else self.given
            yield from self.ruler.add(row.number, conversation, shown or [])

    def finish(self) -> Iterator[tuple[int, Problem]]:
        """What can be said only after the last row."""
        if self.ruler is not None:
            yield from self.ruler.measure()
        yield from self._seen_rows.problems()

    def _problems(
        self, number: int, values: Mapping[str, Any], conversation: Conversation, tools: list | Problem
    ) -> Iterator[Problem]:
        messages = conversation.messages
        self.roles.update(str(message.get("role")) for message in messages)
        calls: list[Calls] = [read_calls(message) if message.get("role") == "assistant" else [] for message in messages]
        yield from check_roles(conversation)
        yield from check_contents(messages)
        yield from check_turns(messages, calls, is_prompt=conversation.is_prompt)
        yield from self._check_calls(calls, tools)
        yield from check_answer(messages, values.get(self.answer_column))
        yield from self._seen_types.add(number, values, messages)

    def _check_calls(self, calls: list[Calls], tools: list | Problem) -> Iterator[Problem]:
        if isinstance(tools, Problem):
            yield tools
        book = self._shelf.book_of(tools) if isinstance(tools, list) and tools else self.given_book
        if book is not None and book is not self.given_book:
            yield from book.problems
            if self.given_book is not None:
                yield from compare(book, self.given_book)
        for call in (call for turn in calls for call in turn or ()):
            if isinstance(call, Problem):
                yield call
            elif book is not None:
                yield from book.check(call)


UNRENDERABLE = (Kind.ROLES, Kind.CONTENT, Kind.BROKEN_CALL)  # why a chat template may raise, reported already


def compare(book: ToolBook, given: ToolBook) -> Iterator[Problem]:
    """The row's tools and those that will be used for training."""
    if book.validators.keys() != given.validators.keys():
        found = f"the row has the tools {', '.join(book.validators)}"
        remedy = "train with the tools that the row was made with"
        yield Problem(Kind.TOOLS_DIFFER, found, ", ".join(given.validators), remedy)
