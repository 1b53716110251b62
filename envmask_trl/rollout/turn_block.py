"""What a chat template writes between an assistant's turn and the next one. Knows text and templates: no tokens.

The block is read off a small probe conversation, never off the rollout's own history, so a template that rewrites
history (drops earlier thinking, moves a tool schema) cannot shift a boundary.

    <|im_end|>  \\n<|im_start|>user\\n<tool_response>  7 degrees  </tool_response><|im_end|>\\n<|im_start|>assistant\\n
    closer      pieces[0]                          content    pieces[1]
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..trajectory import ToolCall
from .response_templates import render

USER_MARK = "envmaskQuestion"
CALL_MARK = "envmaskCallEnd"
HOSTILE = ' "q"\\ <a>&é\n '  # quotes, backslash, markup, a two-byte letter, white space at both ends


@dataclass(frozen=True, slots=True)
class TurnBlock:
    """The scaffold around the results of one turn.

    Example:
        TurnBlock(closer="<|im_end|>", pieces=("\\n<|im_start|>user\\n", "<|im_end|>\\n<|im_start|>assistant\\n"))
    """

    closer: str  # ends the assistant's turn; the model has usually sampled it itself
    pieces: tuple[str, ...]  # text before, between and after the contents: one more than there are contents
    has_tool_role: bool = True


class Renderer(Protocol):
    """Writes the text around the results of a turn."""

    stop_texts: list[str]  # texts of tokens that end a turn, one of which the block may have to add
    marks: tuple[str, ...]  # ordinary texts of the scaffold that must not come from a result as they are

    def block(self, calls: Sequence[ToolCall]) -> TurnBlock: ...

    def shown(self, calls: Sequence[ToolCall], number: int, content: str) -> str: ...


class BlockRenderer:
    """Renders the block for given calls with the tokenizer's chat template.

    Args:
        tokenizer: has a chat template.
        tools: as passed to the prompt; some templates behave differently with tools.
        stop_texts: the texts of all stop tokens; the last one after the calls is the closer.
        template_kwargs: as for `apply_chat_template`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tools: list | None,
        stop_texts: Collection[str],
        template_kwargs: dict[str, Any],
    ):
        self.tokenizer = tokenizer
        self.tools = tools
        self.stop_texts = [text for text in stop_texts if text]
        self.marks: tuple[str, ...] = ()
        self.template_kwargs = template_kwargs
        self.has_tool_role = True
        self._blocks: dict[tuple[tuple[str, str], ...], TurnBlock] = {}
        self._is_verbatim: bool | None = None

    def block(self, calls: Sequence[ToolCall]) -> TurnBlock:
        """The scaffold for the results of `calls`, which must not be empty.

        Raises:
            ValueError: the template can show neither tool results nor a user's turn after a call.
        """
        key = tuple((call.name, call.id) for call in calls)
        if key not in self._blocks:
            marks = [result_mark(number) for number in range(len(calls))]
            self._blocks[key] = self._render_block(calls, marks)
        return self._blocks[key]

    def shown(self, calls: Sequence[ToolCall], number: int, content: str) -> str:
        """The text that the template writes for the content of one result: some trim it, some write it as JSON."""
        if self._is_verbatim is None:
            self._is_verbatim = self._shown(calls[:1], HOSTILE) == HOSTILE
        return content if self._is_verbatim else self._shown((calls[number],), content)

    def _shown(self, calls: Sequence[ToolCall], content: str) -> str:
        """Cut out by lengths, never by search: a content may hold any text, the marks of the probe included."""
        has_tool_role = self.block(calls).has_tool_role
        marked, _ = self._probe(calls, [result_mark(0)], has_tool_role)
        full, _ = self._probe(calls, [content], has_tool_role)
        before, after = marked.split(result_mark(0), 1)
        return full[len(before) : len(full) - len(after)]

    def _render_block(self, calls: Sequence[ToolCall], marks: list[str]) -> TurnBlock:
        for has_tool_role in (True, False):
            try:
                rest, alone = self._rest(calls, marks, has_tool_role)
            except (TemplateError, TypeError, ValueError):
                continue
            found = [rest.find(mark) for mark in marks]
            if any(rest.count(mark) != 1 for mark in marks) or found != sorted(found):
                continue
            self.has_tool_role = has_tool_role
            return self._split(rest, alone, marks, has_tool_role)
        raise ValueError(
            f"the chat template shows neither tool results nor a user's turn after a call of {calls[0].name!r}; "
            "use a template with a tool role"
        )

    def _split(self, rest: str, alone: str, marks: list[str], has_tool_role: bool) -> TurnBlock:
        """Cut `rest`, the text from the calls on, into the call's end, the closer and the pieces."""
        head = rest[: rest.find(marks[0])]
        end, closer = find_closer(head, common_start(head, alone), self.stop_texts)
        scaffold = rest[end:]
        pieces = []
        for mark in marks:
            before, scaffold = scaffold.split(mark, 1)
            pieces.append(before)
        return TurnBlock(closer, (*pieces, scaffold), has_tool_role)

    def _rest(self, calls: Sequence[ToolCall], contents: list[str], has_tool_role: bool) -> tuple[str, str]:
        """What is rendered from the last call's end on: with the results, and with nothing after the turn."""
        full, alone = self._probe(calls, contents, has_tool_role)
        if CALL_MARK not in full or CALL_MARK not in alone:
            raise ValueError("the template does not show the assistant's calls")
        return (text[text.rindex(CALL_MARK) + len(CALL_MARK) :] for text in (full, alone))  # type: ignore[return-value]

    def _probe(self, calls: Sequence[ToolCall], contents: list[str], has_tool_role: bool) -> tuple[str, str]:
        """The whole probe conversation, and the one that ends with the assistant's turn."""
        question = {"role": "user", "content": USER_MARK}
        for arguments in ({"mark": CALL_MARK}, f'{{"mark": "{CALL_MARK}"}}'):  # some templates want a JSON string
            messages = [question, *probe_turn(calls, contents, arguments, has_tool_role)]
            try:
                full = self.render(messages, add_generation_prompt=True)
                return full, self.render(messages[:2], add_generation_prompt=False)
            except TypeError:
                if isinstance(arguments, str):
                    raise
        raise AssertionError("unreachable")

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        return render(
            self.tokenizer, messages, self.tools, self.template_kwargs, add_generation_prompt=add_generation_prompt
        )


def probe_turn(
    calls: Sequence[ToolCall], contents: list[str], arguments: Any, has_tool_role: bool
) -> list[dict[str, Any]]:
    """An assistant's turn with the names and ids of `calls`, and the messages that answer it.

    The arguments are a mark: they decide nothing behind the turn, and the mark says where the last call ends.
    """
    if not has_tool_role:
        return [{"role": "assistant", "content": CALL_MARK}, {"role": "user", "content": "\n".join(contents)}]
    tool_calls = [
        {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}} for call in calls
    ]
    results = [
        {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}
        for call, content in zip(calls, contents, strict=True)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": tool_calls}, *results]


def find_closer(head: str, turn_end: str, stop_texts: Collection[str]) -> tuple[int, str]:
    """Where in `head` the closer of the assistant's turn ends, and its text, "" if no stop token closes the turn.

    It is the last stop token of `turn_end`, the text that is there whatever follows. GLM's turns end with the token
    that opens the next message, so a stop token that starts no later than `turn_end` ends will do.
    """
    ends = {turn_end.rfind(text) + len(text): text for text in stop_texts if text in turn_end}
    if not ends:
        starts = {text: head.rfind(text, 0, len(turn_end) + len(text)) for text in stop_texts}
        ends = {start + len(text): text for text, start in starts.items() if start >= 0}
    end = max(ends, default=len(turn_end))
    return end, ends.get(end, "")


def common_start(left: str, right: str) -> str:
    """The longest text that both start with: `("abc", "abd")` -> `"ab"`."""
    length = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return left[:length]


def result_mark(number: int) -> str:
    return f"envmaskResult{number}End"
