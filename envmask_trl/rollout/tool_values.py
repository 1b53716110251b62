"""What goes into a tool and what becomes of the value it returns. Knows values and signatures: picks no call, no order.

arguments   find_refusal   None, or why the model's call must not be run
value       to_content     the text that the model is shown
"""

import dataclasses
import inspect
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, ItemsView, Iterator, KeysView, Mapping, Set, ValuesView
from enum import Enum
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from ..trajectory import CallStatus, ToolCall

MAX_ECHO = 60  # characters of a name that the model made up
MAX_MESSAGE = 300  # characters of an exception's message
MEDIA_BLOCKS = frozenset({"image", "image_url", "input_image", "audio", "input_audio", "video", "video_url"})
MAX_ITEMS = 100_000  # that are taken from a generator, which may have no end
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in Python's own text of an object: other in each run, and says nothing
JSON_TYPES = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


def find_refusal(call: ToolCall, tools: Mapping[str, Callable[..., Any]]) -> tuple[CallStatus, str] | None:
    """Why a call must not be run, or None when it is legal.

    Example:
        find_refusal(ToolCall("0", "ghost", {}), {"weather": weather})
        (CallStatus.UNKNOWN_TOOL, "Error: there is no tool named 'ghost'. Tools: weather")
        find_refusal(ToolCall("0", "weather", {"town": "Oslo"}), {"weather": weather})
        (CallStatus.BAD_ARGUMENTS, "Error: weather takes city: str; missing: city; not known: town")
    """
    if call.name not in tools:
        known = f"Tools: {', '.join(tools)}" if tools else "There are no tools"
        return CallStatus.UNKNOWN_TOOL, f"Error: there is no tool named {call.name[:MAX_ECHO]!r}. {known}"
    problem = find_argument_problem(call.name, tools[call.name], call.arguments)
    return None if problem is None else (CallStatus.BAD_ARGUMENTS, f"Error: {problem}")


def find_argument_problem(name: str, tool: Callable[..., Any], arguments: Any) -> str | None:
    """What is wrong with the arguments, in words that hold no Python internals; None when the tool takes them."""
    try:
        signature = inspect.signature(tool)
    except (ValueError, TypeError):  # some builtins do not say what they take
        signature = inspect.Signature([inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)])
    takes = f"{name} takes {describe_parameters(signature)}"
    if not isinstance(arguments, dict):
        found = JSON_TYPES.get(type(arguments), "something else")
        return f"the arguments of {name} must be a JSON object, found {found}; {takes}"
    try:
        signature.bind(**arguments)
    except TypeError:
        named = {parameter.name: parameter for parameter in signature.parameters.values() if is_named(parameter)}
        missing = [key for key, parameter in named.items() if is_required(parameter) and key not in arguments]
        unknown = [str(key)[:MAX_ECHO] for key in arguments if key not in named][:5]
        problems = [("missing", missing), ("not known", unknown)]
        return "; ".join([takes, *(f"{problem}: {', '.join(keys)}" for problem, keys in problems if keys)])
    return None


def describe_parameters(signature: inspect.Signature) -> str:
    """city: str, unit: str (optional)"""
    parameters = [parameter for parameter in signature.parameters.values() if is_named(parameter)]
    return ", ".join(describe_parameter(parameter) for parameter in parameters) or "no named arguments"


def describe_parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {inspect.formatannotation(parameter.annotation)}".replace("'", "")
    return text if is_required(parameter) else f"{text} (optional)"


def is_named(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty


def describe_error(error: BaseException) -> str:
    """Error: ValueError: no such city

    Of a group, as task groups raise it, the errors in it are told.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe_error(inner) for inner in error.exceptions)[: 2 * MAX_MESSAGE]
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException:
        message = "its message cannot be read"
    return to_text(f"Error: {type(error).__name__}: {message}".removesuffix(": "))


def to_content(value: Any) -> str:
    """The text that the model is shown for what a tool returned.

    A str stays as it is, bytes are decoded, text blocks joined. JSON for dict, list, tuple, set, number, bool, None,
    dataclasses, pydantic models, enums, arrays, tensors, and for what a generator yields, wherever in the value they
    stand. `str(value)` for the rest.

    Example:
        to_content({"ok": True, "x": None})   '{"ok": true, "x": null}'
        to_content([{"type": "text", "text": "7 C"}, {"type": "text", "text": ", rain"}])   '7 C, rain'

    Raises:
        ValueError: content blocks that are not text, or a generator without end. Other errors come only from the
            value's own methods.
    """
    if isinstance(value, str):
        return to_text(value)
    if isinstance(value, list) and all(issubclass(type(item), Model) for item in value):  # content of an MCP result
        value = [to_plain(item) for item in value]
    if is_blocks(value):
        return to_text("".join(read_text_block(block) for block in value))
    if not isinstance(value, (dict, list, tuple, int, float)) and value is not None:
        value = to_plain(value)
    return to_text(value) if isinstance(value, str) else to_json(value)


@runtime_checkable
class Array(Protocol):
    """Of numpy, torch and their kin."""

    def __array__(self) -> Any: ...

    def tolist(self) -> Any: ...


@runtime_checkable
class Labelled(Protocol):
    """A pandas Series: an array whose labels only its text shows."""

    def to_frame(self) -> Any: ...


@runtime_checkable
class Model(Protocol):
    """Of pydantic."""

    def model_dump(self, *, mode: str) -> Any: ...


def to_plain(value: Any) -> Any:
    """What JSON has a form for in place of `value`, which it has none for; a text where there is no such form."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", errors="replace")
    if isinstance(value, type):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    kind = type(value)  # asked instead of the value, which may answer for every name, as proxies do
    if issubclass(kind, Model):
        return value.model_dump(mode="json")
    if issubclass(kind, Array) and not issubclass(kind, Labelled):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterator):
        return read_all(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)  # texts have another order in each process
    if isinstance(value, (KeysView, ValuesView, ItemsView, deque, range)):
        return list(value)
    return ADDRESS.sub("", str(value))


def read_all(values: Iterator[Any]) -> list[Any]:
    """What a generator yields. A tool that is one does its work only now."""
    return not_too_many(list(islice(values, MAX_ITEMS + 1)))


async def read_all_async(values: AsyncIterator[Any]) -> list[Any]:
    items: list[Any] = []
    async for item in values:
        items.append(item)
        not_too_many(items)
    return items


def not_too_many(items: list[Any]) -> list[Any]:
    if len(items) > MAX_ITEMS:
        raise ValueError(f"the tool yielded more than {MAX_ITEMS} values; return what the model is to see")
    return items


def is_blocks(value: Any) -> bool:
    """Whether a list is made of content blocks; records that merely have a field "type" are data."""
    return isinstance(value, list) and bool(value) and all(is_block(item) for item in value)


def is_block(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    return isinstance(item.get("text"), str) if kind == "text" else isinstance(kind, str) and kind in MEDIA_BLOCKS


def read_text_block(block: Mapping[str, Any]) -> str:
    if block["type"] != "text":
        raise ValueError(f"the tool returned a content block of type {block['type']!r}; only 'text' can be shown")
    return block["text"]


def to_json(value: Any) -> str:
    """JSON, or `str(value)` where JSON has no form, as of values that hold themselves."""
    try:
        try:
            return to_text(json.dumps(value, ensure_ascii=False, default=to_plain))
        except TypeError:
            return to_text(json.dumps(text_keys(value), ensure_ascii=False, default=to_plain))
    except (TypeError, ValueError, RecursionError):
        return to_text(str(value))


def text_keys(value: Any) -> Any:
    """The value with texts for the keys that JSON has no form for: `{(1, 2): 3}` -> `{"(1, 2)": 3}`."""
    if isinstance(value, dict):
        plain = (str, int, float, type(None))
        return {key if isinstance(key, plain) else str(to_plain(key)): text_keys(item) for key, item in value.items()}
    return [text_keys(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_text(text: str) -> str:
    """The same text with '?' for lone surrogates, which no tokenizer accepts."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
