"""Whether a row is a conversation at all, before a template is asked to show it. Knows roles and fields: no tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from .parts import Reason, RowProblem

BEFORE_THE_MODEL = ("system", "developer", "user")
CONTENT_NEEDED = ("user", "tool")  # an assistant may only call, a system message may be empty


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


def _problem(detail: str) -> RowProblem:
    return RowProblem(Reason.NOT_A_ROLLOUT, detail)
