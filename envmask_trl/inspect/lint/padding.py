"""Nulls that Arrow has put into a row because another row has the key. Knows which nulls can be real.

{"role": "user", "content": "hi", "tool_calls": null, "name": null}      two are padding
{"name": "f", "arguments": {"a": 1, "b": null}}                          b is, if f has no parameter b
{"properties": {"a": {"type": "string", "default": null}, "b": null}}    b is; a default of null is real
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ...trajectory import Message
from .conversation import COLUMNS
from .findings import Kind, Problem
from .tool_schemas import Bookshelf, ToolBook, read_tools

VALUES = ("default", "const", "enum", "examples", "example")  # keys of a schema that hold data, not schemas
BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # schemas under any name
NO_BOOK = ToolBook([])
Path = tuple[str | int, ...]
REMEDY = "write a copy without them: envmask-trl lint --fix; keep tools and arguments as JSON text or datasets.Json"


class Stripped:
    """A row without its padding.

    Example:
        stripped = Stripped({"messages": [{"role": "user", "content": "hi", "name": None}]}, Bookshelf())
        stripped.row      {"messages": [{"role": "user", "content": "hi"}]}
        stripped.padded   ["messages.0.name"]
    """

    def __init__(self, row: Mapping[str, Any], shelf: Bookshelf, given: ToolBook | None = None):
        self.padded: list[str] = []
        self.unclear: list[str] = []  # nulls that only a schema could tell from a value
        self.row = dict(row)
        if isinstance(row.get("tools"), list):
            self.row["tools"] = [self.schema(tool, f"tools.{i}") for i, tool in enumerate(row["tools"])]
        tools = read_tools(self.row.get("tools"))
        self.book = shelf.book_of(tools) if isinstance(tools, list) and tools else given
        for column in (*COLUMNS, "prompt", "completion"):
            if isinstance(row.get(column), list):
                self.row[column] = [self.message(each, f"{column}.{i}") for i, each in enumerate(row[column])]

    def problems(self) -> Iterator[Problem]:
        """One finding for all the nulls of the row."""
        if self.padded:
            more = f" and {len(self.padded) - 1} more are" if len(self.padded) > 1 else " is"
            yield Problem(
                Kind.NULL_PADDING, f"{self.padded[0]}{more} null", "keys only where they have a value", REMEDY
            )
        elif self.unclear:
            found = f"{self.unclear[0]} is null, and no schema says whether that is a value"
            yield Problem(Kind.NULL_PADDING, found, "a schema of the tool", "give tools=, or a column tools")

    def without(self, value: Mapping[str, Any], path: str, real: tuple[str, ...] = ()) -> dict[str, Any]:
        """The mapping without nulls, except under the keys in `real`."""
        self.padded += [f"{path}.{key}" for key, each in value.items() if each is None and key not in real]
        return {key: each for key, each in value.items() if each is not None or key in real}

    def schema(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self.schema(each, f"{path}.{i}") for i, each in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        kept = self.without(value, path, real=real_nulls(value))
        read = {key: self.by_name if key in BY_NAME else self.schema for key in kept if key not in VALUES}
        return {key: read[key](each, f"{path}.{key}") if key in read else each for key, each in kept.items()}

    def by_name(self, value: Any, path: str) -> Any:
        """Schemas under names that somebody chose: one named "default" or "enum" is a schema like any other."""
        if not isinstance(value, Mapping):
            return value
        return {key: self.schema(each, f"{path}.{key}") for key, each in self.without(value, path).items()}

    def message(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return value
        message: Message = self.without(value, path, real=("content", "role"))
        for key in ("tool_calls", "content"):
            if isinstance(message.get(key), list):
                read = self.call if key == "tool_calls" else self.block
                message[key] = [read(each, f"{path}.{key}.{i}") for i, each in enumerate(message[key])]
        return message

    def block(self, value: Any, path: str) -> Any:
        return self.without(value, path) if isinstance(value, Mapping) else value

    def call(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return value
        call = self.without(value, path, real=("name", "arguments"))
        if isinstance(call.get("function"), Mapping):
            bare = {key: each for key, each in call.items() if each is not None or key not in ("name", "arguments")}
            self.padded += [f"{path}.{key}" for key in call if key not in bare]
            return {**bare, "function": self.call(call["function"], f"{path}.function")}
        if isinstance(call.get("arguments"), Mapping):
            call["arguments"] = self.arguments(call["arguments"], str(call.get("name")), f"{path}.arguments")
        return call

    def arguments(self, value: Mapping[str, Any], name: str, path: str) -> Any:
        """The arguments without their padding, at any depth; without a schema nothing of them is removed."""
        found = [*(self.book or NO_BOOK).null_padding(name, value)]
        for place, is_padding in found:
            (self.padded if is_padding else self.unclear).append(".".join(map(str, (path, *place))))
        return without_places(value, {place for place, is_padding in found if is_padding})


def without_places(value: Any, places: set[Path], path: Path = ()) -> Any:
    """The value without what stands at `places`: `({"a": {"b": None, "c": 1}}, {("a", "b")})` -> `{"a": {"c": 1}}`."""
    if not places or not isinstance(value, Mapping | list):
        return value
    if isinstance(value, list):
        return [without_places(each, places, (*path, number)) for number, each in enumerate(value)]
    kept = {key: each for key, each in value.items() if (*path, key) not in places}
    return {key: without_places(each, places, (*path, key)) for key, each in kept.items()}


def real_nulls(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a schema whose null may be data: a const only where no type forbids it; lists are never null."""
    types = schema.get("type")
    return (
        ("default", "example") if types and types != "null" and "null" not in types else ("default", "example", "const")
    )
