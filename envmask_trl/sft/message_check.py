"""Whether a row is a conversation at all, before a template is asked to show it. Knows roles and fields: no tokens.

What a field says is read here too: a content as one text, and whether a turn is to be learned.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..rollout.message_text import joined_text
from ..trajectory import Message
from .parts import Reason, RowProblem

BEFORE_THE_MODEL = ("system", "developer", "user")
CONTENT_NEEDED = ("user", "tool")  # an assistant may only call, a system message may be empty
LEARNED_FLAGS = ("train", "loss")  # of axolotl and ms-swift, as OpenAI's `weight`


def check_messages(messages: Any) -> None:
    """Raise where a message cannot be one; what may follow what is found while the conversation is read.

    Example:
        check_messages([{"role": "user", "content": "How warm is Oslo?"}, {"role": "assistant", "content": "27"}])

    Raises:
        RowProblem: not a list of messages with a role and a content, or another role before the first assistant's.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise _problem(f"messages is {type(messages).__name__}, expected a list of messages")
    spoke = False
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise _problem(f"message {number} is {type(message).__name__}, expected a dict with role and content")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise _problem(f"message {number} has the role {role!r}, expected a text such as 'user'")
        spoke = spoke or role == "assistant"
        if not spoke and role not in BEFORE_THE_MODEL:
            raise _problem(f"message {number} has the role {role!r}, expected one of {', '.join(BEFORE_THE_MODEL)}")
        if role in CONTENT_NEEDED and not isinstance(content, str | Sequence):
            raise _problem(f"message {number} ({role}) has the content {content!r}, expected a text")


def with_text(message: Message) -> Message:
    """The message with one text in place of blocks of text, which templates may leave out.

    Example:
        with_text({"role": "user", "content": [{"type": "text", "text": "6 * "}, {"type": "text", "text": "7?"}]})
        -> {"role": "user", "content": "6 * 7?"}

    Raises:
        RowProblem: they hold something else, of which no rollout's text is known.
    """
    content = message.get("content")
    if content is None:
        return message
    article = "an" if message["role"] == "assistant" else "a"
    try:
        return {**message, "content": joined_text(f"{article} {message['role']}'s content", content)}
    except ValueError as error:
        raise _problem(str(error)) from error


def is_learned(message: Message, number: int) -> bool:
    """Whether no flag of the assistant's message says that it is not to be learned.

    Example:
        is_learned({"role": "assistant", "content": "27", "weight": 0}, 1) == False

    Raises:
        RowProblem: a weight is neither 0 nor 1. Another `train` or `loss`, such as a logged number, is no flag.
    """
    weight = message.get("weight", 1)
    if weight is not None and (not isinstance(weight, int | float) or weight not in (0, 1)):
        raise _problem(f"message {number} has the weight {weight!r}, expected 0 or 1; leave it out to learn it")
    flags = [message.get(name) for name in ("weight", *LEARNED_FLAGS)]
    return not any(isinstance(flag, int | float) and flag == 0 for flag in flags)


def _problem(detail: str) -> RowProblem:
    return RowProblem(Reason.NOT_A_ROLLOUT, detail)
