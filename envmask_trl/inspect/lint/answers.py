"""Finds answers that a tool said and the model did not. Knows text: a reward that reads it all would pay for them."""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...rewards.answer_text import UNSPACED
from ...trajectory import Message
from .conversation import text_of
from .findings import Kind, Problem, echo

OBSERVED = re.compile(r"<(information|observation|tool_response)>(.*?)(?:</\1>|\Z)", re.DOTALL)  # inside other turns
ESCAPED = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([ntr"\\/]))')  # a result is often JSON
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
LETTER = rf"[^\W{UNSPACED}]"


def check_answer(messages: list[Message], answer: Any) -> Iterator[Problem]:
    """The answer, or any of several, stands in an observation, and none of them in what the assistant says.

    Example:
        tool "The capital is Paris."   assistant "I do not know."   answer "Paris"    one finding
    """
    golds = [gold for each in answers_of(answer) if (gold := fold(each))]
    if not golds or not any(message.get("role") == "assistant" for message in messages):
        return
    said, observed = split_by_author(messages)
    holder = next((i for i, text in observed if any(stands_in(gold, text) for gold in golds)), None)
    if holder is not None and not any(stands_in(gold, text) for gold in golds for text in said):
        found = f"the answer {echo(answer)} stands in an observation, message {holder}, and the assistant never says it"
        remedy = "let the model say it, and reward model_texts, not the whole text"
        yield Problem(Kind.ANSWER_IN_OBSERVATION, found, "it in what the assistant says", remedy)


def answers_of(answer: Any) -> list[str]:
    """The texts that count as the answer: `{"target": ["Paris", 7]}` -> `["Paris", "7"]`."""
    if isinstance(answer, str):
        return [answer]
    if answer is None or isinstance(answer, Mapping | Sequence):
        parts = answer.values() if isinstance(answer, Mapping) else answer or ()
        return [text for part in parts for text in answers_of(part)]
    return [json.dumps(answer, default=str)]


def split_by_author(messages: list[Message]) -> tuple[list[str], list[tuple[int, str]]]:
    """What the assistant says, thinks and calls with; and (message, text) of what a tool says, tags of one included."""
    said, observed = [], []
    for index, message in enumerate(messages):
        role, text = message.get("role"), text_of(message)
        if role == "tool":
            observed.append((index, fold(text)))
            continue
        if "<" in text:
            observed += [(index, fold(match[2])) for match in OBSERVED.finditer(text)]
            text = OBSERVED.sub(" ", text)
        if role == "assistant":
            others = (message.get(key) for key in ("reasoning_content", "thinking", "tool_calls"))
            texts = (each if isinstance(each, str) else json.dumps(each, default=str) for each in others if each)
            said += [fold(each) for each in (text, *texts)]
    return said, observed


def fold(text: str) -> str:
    """The text without differences that are none: case, white space, escapes, marks on letters, commas in 1,000."""
    if "\\" in text:
        text = ESCAPED.sub(
            lambda match: chr(int(match[1], 16)) if match[1] else " " if match[2] in "ntr" else match[2], text
        )
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    if "," in text:
        text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return " ".join(text.casefold().split())


def stands_in(gold: str, text: str) -> bool:
    """Whether `gold` stands in `text` as a word of its own: 7 stands in "7 C" and "7.0", not in "27", "7.5" or "-7"."""
    is_number = NUMBER.fullmatch(gold) is not None
    if is_number:
        gold = re.sub(r"\.?0+$", "", gold) if "." in gold else gold
    if gold not in text:
        return False
    before = rf"(?<!{LETTER})(?<!\d[.,])" if re.match(rf"[\W{UNSPACED}]", gold) is None else r"(?<!\d[.,])"
    before += r"(?<!-)" if gold[0].isdigit() else ""
    zeros = (r"0*" if "." in gold else r"(?:\.0+)?") if is_number else ""
    after = rf"(?!{LETTER}|[.,]\d)" if re.match(rf"[\W{UNSPACED}]", gold[-1]) is None else r"(?![.,]\d)"
    return re.search(before + re.escape(gold) + zeros + after, text) is not None
