"""Compares calls with the JSON schemas of tools. Knows schemas and calls: no messages, no rows."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator, SchemaError

from ...trajectory import ToolCall
from .findings import Kind, Problem, echo
from .rows import describe_json_error, read_json

MAX_BOOKS = 1000  # sets of tools that are remembered

SchemaOrFunction = Mapping[str, Any] | Callable[..., Any]


class ToolBook:
    """The tools of a row: what each of them takes.

    Example:
        book = ToolBook([{"type": "function", "function": {"name": "weather", "parameters": {...}}}])
        list(book.check(ToolCall("", "ghost", {})))   # one Problem of the kind unknown-tool
    """

    def __init__(self, schemas: Sequence[Any]):
        self.problems: list[Problem] = []  # of the schemas themselves
        self.validators: dict[str, Draft202012Validator | None] = {}  # None: the schema is none, anything goes
        for schema in schemas:
            self._add(schema)

    def _add(self, schema: Any) -> None:
        function = schema.get("function", schema) if isinstance(schema, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            expected = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
            self.problems.append(Problem(Kind.TOOL_SCHEMA, f"a tool is {echo(schema)}", expected, "repair the schema"))
            return
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        try:
            Draft202012Validator.check_schema(parameters)
        except SchemaError as error:
            found = f"parameters of {echo(name)}: {describe(error)}"
            self.problems.append(Problem(Kind.TOOL_SCHEMA, found, "a JSON schema", "use the types of JSON Schema"))
            self.validators[name] = None
        else:
            self.validators[name] = Draft202012Validator(parameters)

    def check(self, call: ToolCall) -> Iterator[Problem]:
        """The first reason why the call cannot be run."""
        if call.name not in self.validators:
            known = ", ".join(self.validators) or "no tool"
            yield Problem(Kind.UNKNOWN_TOOL, f"a call of {echo(call.name)}", known, "add the tool or drop the row")
            return
        validator = self.validators[call.name]
        if validator is None:
            return
        known_names = validator.schema.get("properties", {})
        if not takes_others(validator.schema) and (others := sorted(set(call.arguments) - set(known_names))):
            found, expected = f"{call.name} is called with {echo(others[0])}", ", ".join(known_names) or "no arguments"
            yield Problem(Kind.ARGUMENTS, found, expected, "rename or drop the argument")
        elif (error := next(validator.iter_errors(call.arguments), None)) is not None:
            found, expected = f"{call.name} is called with {echo(call.arguments)}", describe(error)
            yield Problem(Kind.ARGUMENTS, found, expected, "repair the call or drop the row")

    def is_null_padding(self, name: str, key: str) -> bool | None:
        """Whether a null under this argument can only come from Arrow; None when no schema tells."""
        validator = self.validators.get(name)
        if validator is None:
            return None
        schema = validator.schema
        if key not in schema.get("properties", {}):
            return None if takes_others(schema) else True
        return key not in schema.get("required", []) and not validator.evolve(
            schema=schema["properties"][key]
        ).is_valid(None)


def takes_others(schema: Mapping[str, Any]) -> bool:
    """Whether arguments that the schema does not name are allowed on purpose; JSON Schema's own default is not one."""
    return bool(schema.get("additionalProperties")) or "patternProperties" in schema


def describe(error: Any) -> str:
    """The message of a jsonschema error, with where it stands."""
    where = ".".join(str(part) for part in error.absolute_path)
    message = error.message if len(error.message) <= 160 else f"{error.message[:157]}..."
    return f"{where}: {message}" if where else message


def to_schemas(tools: Sequence[SchemaOrFunction]) -> list[Any]:
    """Functions as the schemas that the chat template would show."""
    schemas: list[Any] = []
    for tool in tools:
        if callable(tool):
            from transformers.utils import get_json_schema

            schemas.append(get_json_schema(tool))
        else:
            schemas.append(tool)
    return schemas


def read_tools(value: Any) -> list[Any] | Problem:
    """The column `tools` of a row: a list of schemas, or JSON text of one; None is no tools."""
    if isinstance(value, str):
        try:
            value = read_json(value)
        except (ValueError, RecursionError) as error:
            found = f"tools is text: {describe_json_error(error, value)}"
            return Problem(Kind.BROKEN_JSON, found, "JSON", "write the column with json.dumps")
    if value is None or isinstance(value, list):
        return value or []
    return Problem(Kind.TOOL_SCHEMA, f"tools is {echo(value)}", "a list of schemas", "repair the column")


class Bookshelf:
    """The same book for the same schemas: most rows share theirs with the row before, or with many.

    Example:
        shelf = Bookshelf()
        shelf.book_of(row["tools"]) is shelf.book_of(next_row["tools"])
    """

    def __init__(self) -> None:
        self._last: tuple[Sequence[Any], ToolBook] | None = None
        self._books: dict[str, ToolBook] = {}

    def book_of(self, schemas: Sequence[Any]) -> ToolBook:
        if self._last is None or self._last[0] != schemas:
            text = json.dumps(schemas, sort_keys=True, default=str)
            if text not in self._books:
                if len(self._books) >= MAX_BOOKS:
                    self._books.clear()
                self._books[text] = ToolBook(schemas)
            self._last = (schemas, self._books[text])
        return self._last[1]
