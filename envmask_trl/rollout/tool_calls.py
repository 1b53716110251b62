"""From the text of a turn to what the model meant by it. Knows text: no tokens, no tools, nothing is run here."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import lru_cache
from inspect import ismethod
from itertools import chain
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase
from transformers.utils import get_json_schema

from ..trajectory import Message, ToolCall
from .response_templates import find_response_template
from .tool_context import hide_contexts

TurnKind = Literal["answer", "calls", "malformed"]


class InconsistentTurn(ValueError):
    """A parser made a turn whose parts say different things: a fault of the parser, not of the text."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What a turn was: an answer, calls, or something that was meant as a call and cannot be read.

    Example:
        ParsedTurn("calls", {"role": "assistant", "content": "", "tool_calls": [...]}, calls=(ToolCall(...),))
        ParsedTurn("malformed", {"role": "assistant", "content": '<tool_call>{"na'}, reason="the JSON ends too early")
    """

    kind: TurnKind
    message: Message
    calls: tuple[ToolCall, ...] = ()
    reason: str = ""  # for "malformed": one sentence that the model can use

    def __post_init__(self) -> None:
        shown = len(self.message.get("tool_calls") or ())
        if (self.kind == "calls") != bool(self.calls) or shown != len(self.calls):
            raise InconsistentTurn(
                f"a turn of kind {self.kind!r} has {len(self.calls)} calls and {shown} tool_calls in its message; "
                "'calls' needs at least one, and the message shows the same ones"
            )


MAX_DEPTH = 64  # of lists and objects inside the arguments; more would exhaust Python's stack where they are copied
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
REMEMBERED = 1024  # turns whose reading is kept
REMEMBERED_TOOLS = 64  # sets of tools by which turns are read
TurnParser = Callable[[str], ParsedTurn]  # anything that reads the decoded turn, control tokens included


class TemplateParser:
    """Reads turns with transformers' response parsing, by the tokenizer's `response_template`.

    A tokenizer without one gets the first known format that reads back a call which its chat template has written.

    Args:
        tokenizer: has a chat template.
        tools: given to the parser, which types the arguments of formats that write them as bare text.
        stop_token_ids: ids that may end a turn; their text never becomes part of the content.
        template_kwargs: as for `apply_chat_template`; they decide how the template opens an assistant's turn.

    Raises:
        ValueError: no known format reads this template's calls.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tools: list | None = None,
        stop_token_ids: Collection[int] = (),
        template_kwargs: dict[str, Any] | None = None,
    ):
        self.tokenizer = tokenizer
        self.tools = hide_contexts(tools)
        self.stop_texts = [str(tokenizer.decode([token_id])) for token_id in sorted(stop_token_ids)]
        self.response_template, self.opening = find_response_template(tokenizer, tools, template_kwargs or {})
        self.read_once = lru_cache(maxsize=REMEMBERED)(self.read)
        self.typing_by = lru_cache(maxsize=REMEMBERED_TOOLS)(self._typing_by)

    def for_tools(self, tools: Sequence[Callable[..., Any]]) -> "TemplateParser":
        """The parser for a rollout with these tools: other rollouts may have other ones of the same name."""
        if not self.tools or all(self._knows_only(tool) for tool in tools):
            return self
        return self.typing_by(json.dumps([get_json_schema(tool) for tool in tools]))

    def _knows_only(self, tool: Callable[..., Any]) -> bool:
        """Whether it is this function, of whichever instance, that the parser knows by its name, and no other."""
        named = [own for own in self.tools or () if callable(own) and own.__name__ == tool.__name__]
        return bool(named) and all(function_of(own) is function_of(tool) for own in named)

    def _typing_by(self, schemas: str) -> "TemplateParser":
        other = copy(self)
        other.tools = json.loads(schemas)
        other.read_once = lru_cache(maxsize=REMEMBERED)(other.read)
        return other

    def __call__(self, text: str) -> ParsedTurn:
        return deepcopy(self.read_once(text))  # members of a group often say the same; each gets arguments of its own

    def read(self, text: str) -> ParsedTurn:
        try:
            message = self.tokenizer.parse_response(
                text, schema=self.response_template, prefix=self.opening, tools=self.tools
            )
            calls = read_calls(message)
            if (problem := find_unusable(calls)) is not None:
                raise ValueError(problem)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return ParsedTurn("malformed", self._as_text(text), reason=short_reason(error))
        message = {"role": "assistant", **message, "content": message.get("content") or ""}
        message |= {name: self._strip(text) for name, text in message.items() if isinstance(text, str)}
        if not calls:
            message.pop("tool_calls", None)
        return ParsedTurn("calls" if calls else "answer", message, calls)

    def _as_text(self, text: str) -> Message:
        return {"role": "assistant", "content": self._strip(text)}

    def _strip(self, text: str) -> str:
        for stop_text in self.stop_texts:
            text = text.removesuffix(stop_text)
        return text


def function_of(tool: Any) -> Any:
    return tool.__func__ if ismethod(tool) else tool


def read_calls(message: Message) -> tuple[ToolCall, ...]:
    """The calls of a parsed message; arguments stay as they were decoded, whether they are legal or not.

    Raises:
        ValueError: a call is not an object or has no name: it cannot be answered, so the whole turn cannot be read.
    """
    calls = []
    for entry in message.get("tool_calls") or []:
        function = entry.get("function", entry) if isinstance(entry, dict) else entry
        if not isinstance(function, dict):
            raise ValueError(f"a call must be a JSON object, found {type(function).__name__}")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError("a call must have a 'name' that is a string")
        if "arguments" not in function:
            raise ValueError("a call must have 'arguments'")
        calls.append(ToolCall(id=str(entry.get("id") or ""), name=name, arguments=function["arguments"]))
    return tuple(calls)


def find_unusable(calls: Sequence[ToolCall]) -> str | None:
    """Why calls that were read can be neither run nor written down; None when they can.

    JSON allows half a character (`"\\ud83d"`), which no file and no tokenizer takes, and any depth.
    """
    level: list[Any] = [item for call in calls for item in (call.id, call.name, call.arguments)]
    for _ in range(MAX_DEPTH):
        if any(isinstance(item, str) and HALF_CHARACTER.search(item) for item in level):
            return "it holds half of a character that is written in two"
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (chain(item, item.values()) if isinstance(item, dict) else item)
        ]
        if not level:
            return None
    return f"its arguments are nested more than {MAX_DEPTH} deep"


def short_reason(error: Exception) -> str:
    """The sentence of a parser's error without the payload that it echoes, at most 160 characters."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith("Content:")]
    reason = next((line.removeprefix("Error: ") for line in lines if line.startswith("Error:")), None)
    return (reason or (lines[0] if lines else type(error).__name__))[:160]
