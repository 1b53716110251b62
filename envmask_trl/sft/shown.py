"""Does the chat template write what a message says? Knows messages and marks: no tokens, no labels.

    message   {"content": "<think>so</think>3", "tool_calls": [add(a=1, b=2)]}
    asked     {"content": "<think>envmaskSays0End</think>envmaskSays1End", "tool_calls": [envmaskSays2End(a=1, b=2)]}

A mark that the template leaves out is something that the row would lack. The texts themselves are not looked for:
templates trim and escape them, and a short one stands in any prompt.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..trajectory import Message
from .parts import Reason, RowProblem

THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # copies of one thought, where they are equal
THINK_TAG = re.compile("(</?think>)")


def check_shown(messages: Mapping[int, Message], write: Callable[[list[Message]], str]) -> None:
    """Raise where the template leaves out a content, a thought or a call.

    Args:
        messages: by their numbers in the conversation, contents as texts.
        write: what the template writes for as many messages.

    Raises:
        RowProblem: names what is left out and its message.
    """
    said: dict[str, str] = {}
    text = write(
        [with_marks(message, f"message {number} ({message['role']})", said) for number, message in messages.items()]
    )
    for mark, what in said.items():
        if mark not in text:
            raise RowProblem(
                Reason.TEMPLATE,
                f"the chat template leaves out {what}; write it in a role or field that the template shows, or use "
                "another template",
            )


def with_marks(message: Message, where: str, said: dict[str, str]) -> Message:
    """The message with marks in place of what it says; `said` gets what each mark stands for."""

    def mark(what: str) -> str:
        text = f"envmaskSays{len(said)}End"
        said[text] = f"{what} of {where}"
        return text

    asked = dict(message)
    if message.get("content"):
        pieces = THINK_TAG.split(message["content"])
        asked["content"] = "".join(mark("the content") if is_said(piece) else piece for piece in pieces)
    thoughts: dict[str, str] = {}
    for name in THOUGHTS:
        thought = message.get(name)
        if isinstance(thought, str) and thought.strip() and not is_in(message.get("content"), thought):
            asked[name] = thoughts[thought] = thoughts.get(thought) or mark(f"the `{name}`")
    if message.get("tool_calls"):
        asked["tool_calls"] = [renamed(call, mark) for call in message["tool_calls"]]
    return asked


def is_in(content: Any, thought: str) -> bool:
    """Whether a content holds the thought itself, between its tags."""
    return thought.strip() in [piece.strip() for piece in THINK_TAG.split(content or "")]


def is_said(piece: str) -> bool:
    return bool(piece.strip()) and not THINK_TAG.fullmatch(piece)


def renamed(call: Any, mark: Callable[[str], str]) -> Any:
    """The call under a name that is a mark, flat or not."""
    if isinstance(call.get("function"), dict):
        return {**call, "function": renamed(call["function"], mark)}
    return {**call, "name": mark(f"the call of {call['name']!r}")}
