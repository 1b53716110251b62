"""Pairs calls with their results. Knows messages: not which tools there are, nor what they take.

assistant  tool_calls A, B      two results are due
tool       rA                   one is due
tool       rB                   none is due: results that stand together belong to one turn
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from ...trajectory import Message, ToolCall
from .findings import Kind, Problem, echo
from .rows import describe_json_error, read_json
from .written_calls import read_tagged, written_calls, written_elsewhere

NEEDS = "a name and an object of arguments"
REPAIR = "repair or drop the row: the model would learn to write calls that cannot be run"


Calls = Sequence[ToolCall | Problem] | None  # of one message; None: written in a format that is not read here


def read_calls(message: Message) -> Calls:
    """What an assistant's message calls, in order: a call, or why it cannot be run. Both await a result."""
    entries, written = message.get("tool_calls"), written_calls(message)
    if not entries:
        return [read_written_call(text) for text in written] or (None if written_elsewhere(message) else [])
    if not isinstance(entries, list):
        return [Problem(Kind.BROKEN_CALL, f"tool_calls is {echo(entries)}", "a list of calls", REPAIR)]
    found: list[ToolCall | Problem] = [read_call(entry) for entry in entries]
    if written and isinstance(found[0], ToolCall):
        remedy = "keep one of them: a template would write the call twice"
        found[0] = Problem(Kind.BROKEN_CALL, "calls in tool_calls and in the text too", "each call once", remedy)
    return found


def read_written_call(text: str) -> ToolCall | Problem:
    """A call between tags: JSON, or the tagged arguments of Qwen3-Coder and GLM."""
    if (call := read_tagged(text)) is not None:
        return call
    try:
        return read_call(read_json(text))
    except (ValueError, RecursionError) as error:
        return Problem(Kind.BROKEN_CALL, describe_json_error(error, text), "JSON", REPAIR)


def read_call(entry: Any) -> ToolCall | Problem:
    """One entry of `tool_calls`, bare or under `function`; arguments as an object or as JSON text."""
    if not isinstance(entry, dict):
        return Problem(Kind.BROKEN_CALL, f"a call is {echo(entry)}", NEEDS, REPAIR)
    function = entry.get("function", entry)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name or "arguments" not in function:
        return Problem(Kind.BROKEN_CALL, f"the call {echo(entry)}", NEEDS, REPAIR)
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except (ValueError, RecursionError) as error:
            found = f"the arguments of {echo(name)}: {describe_json_error(error, arguments)}"
            return Problem(Kind.BROKEN_CALL, found, "JSON", REPAIR)
    if not isinstance(arguments, dict):
        return Problem(Kind.BROKEN_CALL, f"the arguments of {echo(name)} are {echo(arguments)}", NEEDS, REPAIR)
    return ToolCall(id_of(entry, "id"), name, arguments)


def id_of(entry: Message, key: str) -> str:
    """The id as text, "" where there is none; 0 is one."""
    value = entry.get(key)
    return "" if value is None else str(value)


def check_turns(messages: list[Message], calls: list[Calls], *, is_prompt: bool) -> Iterator[Problem]:
    """Compare each run of tool messages with the calls before it; `calls` has those of every message."""
    due: Calls = []  # of the assistant's message just before
    runs = groupby(enumerate(messages), key=lambda each: "tool" if each[1].get("role") == "tool" else each[0])
    for role, run in runs:  # tool messages that stand together, or one message of somebody else
        numbered = list(run)
        start, message = numbered[0]
        if role == "tool" and due is not None:
            yield from check_results([result for _, result in numbered], due, start)
        elif due:
            found = f"message {start - 1} has {len(due)} calls, and message {start} is the {message.get('role')}'s"
            yield Problem(Kind.MISSING_TOOL_TURN, found, "a tool message per call", "add the results or drop the row")
        due = calls[numbered[-1][0]]
    if due:
        found = f"the last message has {len(due)} calls without a result"
        yield Problem(Kind.ENDS_IN_CALL, found, "an answer at the end", "ignore it if calls are all you train")
    elif messages[-1].get("role") == "tool" and not is_prompt:
        remedy = "add the model's answer: a reward may take a tool's text for it"
        yield Problem(
            Kind.ENDS_IN_TOOL, f"message {len(messages) - 1} is a tool's", "an assistant's at the end", remedy
        )


def check_results(results: list[Message], due: Sequence[ToolCall | Problem], start: int) -> Iterator[Problem]:
    """One run of tool messages against the calls that await a result."""
    if len(results) > len(due):
        found = f"{len(results)} results from message {start} on for {len(due)} calls"
        yield Problem(Kind.RESULT_WITHOUT_CALL, found, "one per call", "add the calls as tool_calls, or drop the row")
    elif len(results) < len(due):
        found = f"{len(results)} results from message {start} on for {len(due)} calls"
        yield Problem(Kind.CALL_WITHOUT_RESULT, found, "one per call", "add the missing results or drop the row")
    else:
        yield from check_ids(results, [call for call in due if isinstance(call, ToolCall)], start)


def check_ids(results: list[Message], calls: list[ToolCall], start: int) -> Iterator[Problem]:
    """Results that name another call than the one they follow in order."""
    if len(calls) != len(results):  # one of the calls could not be read
        return
    call_ids = [call.id for call in calls]
    if len(set(call_ids)) < len(call_ids) and any(call_ids):
        yield Problem(Kind.IDS, f"calls of one turn have the ids {echo(call_ids)}", "each its own", "number them anew")
        return
    result_ids = [id_of(result, "tool_call_id") for result in results]
    names, called = [result.get("name") for result in results], [call.name for call in calls]
    if any(result_ids) and call_ids != result_ids:
        same = sorted(call_ids) == sorted(result_ids)
        remedy = "put results in call order: many templates show no ids" if same else "give each result its call's id"
        found = f"the results from message {start} on have the ids {echo(result_ids)}"
        yield Problem(Kind.IDS, found, f"{echo(call_ids)}, in this order", remedy)
    elif names != called and any(name and name != call for name, call in zip(names, called, strict=True)):
        found = f"the results from message {start} on are of {echo(names)}"
        yield Problem(
            Kind.IDS,
            found,
            f"{echo(called)}, in this order",
            "put results in call order, each with the name of its call",
        )
