"""Finds answers that a tool said and the model did not. Knows text: a reward that reads it all would pay for them."""

import json
import re
from collections.abc import Iterator
from typing import Any

from ...trajectory import Message
from .conversation import text_of
from .findings import Kind, Problem, echo


def check_answer(messages: list[Message], answer: Any) -> Iterator[Problem]:
    """The answer stands in a tool message, and in none of the assistant's.

    Example:
        tool "The capital is Paris."   assistant "I do not know."   answer "Paris"    one finding
    """
    gold = fold(answer if isinstance(answer, str) else json.dumps(answer, default=str))
    if not gold or answer is None or not any(message.get("role") == "assistant" for message in messages):
        return
    by_tool = find_holder(gold, messages, "tool")
    if by_tool is not None and find_holder(gold, messages, "assistant") is None:
        found = f"the answer {echo(answer)} stands only in message {by_tool}, a tool's"
        remedy = "let the model say it, and reward model_texts, not the whole text"
        yield Problem(Kind.ANSWER_IN_OBSERVATION, found, "it in what the assistant says", remedy)


def find_holder(gold: str, messages: list[Message], role: str) -> int | None:
    """The first message of this role in which `gold` stands."""
    holders = (
        i for i, each in enumerate(messages) if each.get("role") == role and stands_in(gold, fold(text_of(each)))
    )
    return next(holders, None)


def fold(text: str) -> str:
    """The text without differences that are none: case and white space."""
    return " ".join(text.casefold().split())


def stands_in(gold: str, text: str) -> bool:
    """Whether `gold` stands in `text` as a word of its own: 7 stands in "7 C", not in "27", "7.5" or "-7"."""
    if gold not in text:
        return False
    sign = r"(?<!-)" if gold[0].isdigit() else ""
    return re.search(rf"(?<!\w)(?<!\d[.,]){sign}{re.escape(gold)}(?!\w|[.,]\d)", text) is not None
