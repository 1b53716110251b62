"""Whether a row is a conversation at all, before a template is asked to show it. Knows roles and fields: no tokens.

What a field says is read here too: a content as one text, and whether a turn is to be learned.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..trajectory import Message
from .parts import Reason, RowProblem

BEFORE_THE_MODEL = ("system", "developer", "user")
CONTENT_NEEDED = ("user", "tool")  # an assistant may only call, a system message may be empty
LEARNED_FLAGS = ("weight", "train", "loss")  # of OpenAI, axolotl and ms-swift


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
    if content is None or isinstance(content, str):
        return message
    blocks = content if isinstance(content, Sequence) else [content]
    texts = [block.get("text") if is_text_block(block) else None for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        article = "an" if message["role"] == "assistant" else "a"
        raise _problem(f"{article} {message['role']}'s content is {str(content)[:60]!r}, expected a text")
    return {**message, "content": "".join(map(str, texts))}


def is_text_block(block: Any) -> bool:
    """Whether its type, if it has one, is "text", or "input_text" or "output_text" as OpenAI's API has them."""
    return isinstance(block, Mapping) and str(block.get("type") or "text").endswith("text")


def is_learned(message: Message, number: int) -> bool:
    """Whether no flag of the assistant's message says that it is not to be learned.

    Example:
        is_learned({"role": "assistant", "content": "27", "weight": 0}, 1) == False

    Raises:
        RowProblem: a flag is neither 0 nor 1.
    """
    flags = {name: message[name] for name in LEARNED_FLAGS if message.get(name) is not None}
    for name, value in flags.items():
        if not isinstance(value, int | float) or value not in (0, 1):
            raise _problem(f"message {number} has the {name} {value!r}, expected 0, 1, false or true")
    return all(flags.values())


def _problem(detail: str) -> RowProblem:
    return RowProblem(Reason.NOT_A_ROLLOUT, detail)
