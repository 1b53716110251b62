"""Finds calls that stand in an assistant's text. Knows how formats write them: no schemas, no other messages.

<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>                                  Hermes, Qwen
<tool_call><function=f><parameter=a>1</parameter></function></tool_call>                     Qwen3-Coder
<tool_call>f <arg_key>a</arg_key><arg_value>1</arg_value></tool_call>                        GLM
"""

import re

from ...trajectory import Message, ToolCall
from .conversation import text_of

THOUGHT = re.compile(r"(?:<think>|\A(?:(?!<think>).)*?(?=</think>)).*?(?:</think>|\Z)", re.DOTALL)
TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
FUNCTION = re.compile(r"\s*<function=([^>\s]+)\s*>(.*)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\s]+)\s*>\n?(.*?)\n?</parameter>", re.DOTALL)
GLM = re.compile(r"\s*([^\s<{\[\"]+)\s*((?:<arg_key>.*?</arg_key>\s*<arg_value>.*?</arg_value>\s*)*)", re.DOTALL)
PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
ELSEWHERE = (  # marks of formats that are not read here: who knows how many calls there are
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_call",
    "<｜tool▁call",
    "<function_calls>",
    "<function=",
    "<start_function_call>",
    "to=functions.",
)


class Untyped(str):
    """An argument of a format that writes text only: whether "7" is a number, the tool's schema tells."""


def written_calls(message: Message) -> list[str]:
    """The insides of the `<tool_call>` tags of a message, those that it only thinks about aside."""
    text = text_of(message)
    return TAGGED.findall(THOUGHT.sub("", text)) if "<tool_call>" in text else []


def written_elsewhere(message: Message) -> bool:
    """Whether the message calls in a format that is not read here."""
    text = text_of(message)
    return any(mark in text for mark in ELSEWHERE)


def read_tagged(text: str) -> ToolCall | None:
    """The call of a format without JSON; None if it is none.

    Example:
        read_tagged("<function=f><parameter=a>1</parameter></function>")  # ToolCall("", "f", {"a": "1"})
    """
    for whole, argument in ((FUNCTION, PARAMETER), (GLM, PAIR)):
        if match := whole.fullmatch(text):
            return ToolCall("", match[1], {key.strip(): Untyped(value) for key, value in argument.findall(match[2])})
    return None
