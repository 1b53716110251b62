"""Renders and counts rows with the user's own tokenizer and chat template. Knows texts and ids: no columns."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...trajectory import Message
from .conversation import Conversation, text_of
from .findings import Kind, Problem, echo
from .who_trains import SAMPLED_ROWS, Authors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_ROWS = 256
BLANK = " \t\r\n\N{LOWER ONE EIGHTH BLOCK}"  # added tokens of white space control nothing
PIECES = re.compile(r"\s*(?:<[^<>]*>|\n)\s*")  # what templates put anew: tags of thinking and calls, line breaks
SHORTEN = "raise max_length, shorten the row or drop it"


@dataclass(slots=True)
class Measured:
    """Tokens of the rows that were rendered.

    Example:
        Measured(rows=1000, total=301_552, longest=872, longest_row=17)
    """

    rows: int = 0
    total: int = 0
    longest: int = 0
    longest_row: int = 0

    def add(self, row: int, length: int) -> None:
        self.rows += 1
        self.total += length
        if length > self.longest:
            self.longest, self.longest_row = length, row


@dataclass(slots=True)
class Ruler:
    """Rules that need a tokenizer; rows wait until there are enough to encode at once."""

    tokenizer: "PreTrainedTokenizerBase"
    max_length: int | None
    measured: Measured = field(default_factory=Measured)
    authors: Authors = field(default_factory=Authors)
    control_tokens: tuple[str, ...] = ()  # those that would open or end a turn, whoever wrote them
    other_tokens: tuple[str, ...] = ()  # and added ones such as <tool_call>, which only a tool must not write
    checked_tools: list = field(default_factory=list)
    waiting: list[tuple[int, str, Conversation, list]] = field(default_factory=list)

    def __post_init__(self) -> None:
        added = [token for token in self.tokenizer.added_tokens_decoder.values() if token.content.strip(BLANK)]
        self.control_tokens = tuple(sorted(token.content for token in added if token.special))
        self.other_tokens = tuple(sorted(token.content for token in added if not token.special))

    def add(self, number: int, conversation: Conversation, tools: list) -> Iterator[tuple[int, Problem]]:
        """Findings of this row and, now and then, of the rows that waited."""
        yield from ((number, problem) for problem in self.check_control_tokens(conversation.messages))
        if tools != self.checked_tools:
            self.checked_tools = tools
            yield from ((number, problem) for problem in self.find_control("the tools' schemas", plain(tools)))
        try:
            text = self.render(conversation.messages, tools, is_open=conversation.is_prompt)
        except Exception as error:  # a template may raise anything
            found = f"{type(error).__name__}: {echo(str(error))}"
            yield number, Problem(Kind.TEMPLATE, found, "a row that the chat template can show", "repair or drop it")
            return
        yield from ((number, problem) for problem in check_kept(conversation.messages, text))
        if self.authors.tried < SAMPLED_ROWS and not conversation.is_prompt:
            readable = [with_read_arguments(message) for message in conversation.messages]
            self.authors.add(number, readable, tools, self.tokenizer)
        self.waiting.append((number, text, conversation, tools))
        if len(self.waiting) >= BATCH_ROWS:
            yield from self.measure()

    def render(self, messages: Sequence[Message], tools: list, *, is_open: bool) -> str:
        messages = [with_read_arguments(message) for message in messages]
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=is_open
        )
        return str(text)

    def check_control_tokens(self, messages: Sequence[Message]) -> Iterator[Problem]:
        """Text that the tokenizer would turn into control ids: of anyone but the assistant, and in its calls."""
        for index, message in enumerate(messages):
            role = message.get("role")
            if role == "assistant":
                place, text = f"a call of message {index}", plain(message.get("tool_calls") or "")
            else:
                place, text = f"message {index}, the {role}'s,", text_of(message)
            if problem := next(self.find_control(place, text, is_tool=role == "tool"), None):
                yield problem
                return

    def find_control(self, place: str, text: str, *, is_tool: bool = False) -> Iterator[Problem]:
        """The first control token in a text."""
        tokens = (*self.control_tokens, *self.other_tokens) if is_tool else self.control_tokens
        token = next((token for token in tokens if token in text), None)
        if token is not None:
            remedy = "escape it: encoded as it is, it opens or ends a turn"
            yield Problem(Kind.CONTROL_TOKENS, f"{place} contains {token!r}", "ordinary text", remedy)

    def measure(self) -> Iterator[tuple[int, Problem]]:
        """Encode the waiting rows and compare them with the budget."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        texts = [text.encode("utf-8", errors="replace").decode("utf-8") for _, text, _, _ in waiting]
        encoded = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        for (number, _, conversation, tools), ids in zip(waiting, encoded, strict=True):
            self.measured.add(number, len(ids))
            if self.max_length is not None and len(ids) > self.max_length:
                yield number, self.too_long(len(ids), conversation, tools)

    def too_long(self, length: int, conversation: Conversation, tools: list) -> Problem:
        """Says whether the prompt alone fills the budget: then nothing of the row would be trained."""
        messages, expected = conversation.messages, f"at most {self.max_length}"
        first = next((i for i, each in enumerate(messages) if each.get("role") == "assistant"), len(messages))
        if conversation.is_prompt:
            return Problem(Kind.TOO_LONG, f"the prompt has {length} tokens", expected, SHORTEN)
        prompt = self.render(messages[:first], tools, is_open=True)
        prompt_length = len(self.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        all_cut = prompt_length >= (self.max_length or 0)
        cut = "nothing of it would be trained" if all_cut else "its end would be cut"
        found = f"{length} tokens, {prompt_length} of them before the first answer: {cut}"
        return Problem(Kind.TOO_LONG, found, expected, SHORTEN)


def with_read_arguments(message: Message) -> Message:
    """The message with arguments as objects, which most templates write; JSON text would be quoted twice."""
    if not isinstance(message.get("tool_calls"), list):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        arguments = function.get("arguments")
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        function = {"name": function.get("name"), "arguments": arguments}
        calls.append({**{key: call[key] for key in ("id",) if key in call}, "type": "function", "function": function})
    return {**message, "tool_calls": calls}


def check_kept(messages: Sequence[Message], text: str) -> Iterator[Problem]:
    """Contents, thinking and calls that are not in the rendered conversation; one finding for the first."""
    for index, message in enumerate(messages):
        parts = [("content", piece) for piece in PIECES.split(text_of(message))]
        thinking = message.get("reasoning_content") or message.get("thinking")
        parts += [("thinking", piece) for piece in PIECES.split(str(thinking or ""))]
        parts += [("call", str(name)) for name in called_names(message)]
        for what, piece in parts:
            if (said := piece.strip()) and all(
                shown not in text for shown in (said, plain(said)[1:-1], json.dumps(said)[1:-1])
            ):
                remedy = "use a template that shows it: what is left out is neither seen nor learned"
                found = f"the template leaves out {what} of message {index}: {echo(said)}"
                yield Problem(Kind.DROPPED_BY_TEMPLATE, found, "all that the messages say", remedy)
                return


def plain(value: Any) -> str:
    """JSON that leaves letters as they are, as chat templates write it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def called_names(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    functions = [call.get("function", call) for call in calls] if isinstance(calls, list) else []
    return [function.get("name") for function in functions]
