"""Compares calls with the JSON schemas of tools. Knows schemas and calls: no messages, no rows."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from ...rollout.tool_context import hide_context
from ...trajectory import ToolCall
from .findings import Kind, Problem, echo
from .rows import describe_json_error, read_json
from .written_calls import Untyped

MAX_BOOKS = 1000  # sets of tools that are remembered
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
OTHER_NAMES = ("input_schema", "inputSchema")  # of `parameters`, where a tool was written for another interface
OPEN = ("patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")

FIX_SCHEMA = "repair the schema"

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
            self.problems.append(Problem(Kind.TOOL_SCHEMA, f"a tool is {echo(schema)}", expected, FIX_SCHEMA))
            return
        if name in self.validators:
            self.problems.append(
                Problem(Kind.TOOL_SCHEMA, f"two tools named {echo(name)}", "each name once", FIX_SCHEMA)
            )
        self.validators[name] = None
        if other := next((key for key in OTHER_NAMES if key in function and "parameters" not in function), None):
            remedy = f"rename {other} to parameters: chat templates show nothing else"
            self.problems.append(Problem(Kind.TOOL_SCHEMA, f"{echo(name)} has {other}", "parameters", remedy))
            return
        parameters = function.get("parameters") or NO_ARGUMENTS
        try:
            Draft202012Validator.check_schema(parameters)
        except SchemaError as error:
            found = f"parameters of {echo(name)}: {describe(error)}"
            self.problems.append(Problem(Kind.TOOL_SCHEMA, found, "a JSON schema", "use the types of JSON Schema"))
        else:
            if isinstance(parameters, Mapping):  # `true` is a schema too, and allows anything
                self.validators[name] = Draft202012Validator(with_nulls(parameters), registry=Registry())

    def check(self, call: ToolCall) -> Iterator[Problem]:
        """The first reason why the call cannot be run."""
        if call.name not in self.validators:
            known = ", ".join(self.validators) or "no tool"
            yield Problem(Kind.UNKNOWN_TOOL, f"a call of {echo(call.name)}", known, "add the tool or drop the row")
            return
        validator = self.validators[call.name]
        if validator is None:
            return
        try:
            yield from check_arguments(call, validator)
        except (Unresolvable, RecursionError) as error:
            self.validators[call.name] = None  # said once
            reason = "it refers to itself" if isinstance(error, RecursionError) else f"there is no {error.ref}"
            found = f"parameters of {echo(call.name)} cannot be followed: {reason}"
            yield Problem(Kind.TOOL_SCHEMA, found, "references to what stands in the schema", FIX_SCHEMA)

    def null_padding(
        self, name: str, arguments: Mapping[str, Any]
    ) -> Iterator[tuple[tuple[str | int, ...], bool | None]]:
        """(path, True) of each null that can only come from Arrow, (path, None) where no schema tells.

        Example:
            [*book.null_padding("f", {"a": 1, "b": {"c": None}})]  # [(("b", "c"), True)]
        """
        validator = self.validators.get(name)
        try:
            yield from null_padding(arguments, None if validator is None else validator.schema, validator)
        except (Unresolvable, RecursionError):
            return  # reported when the call is checked


def check_arguments(call: ToolCall, validator: Draft202012Validator) -> Iterator[Problem]:
    """The first reason why the schema does not allow the arguments."""
    known_names = validator.schema.get("properties", {})
    arguments = {key: with_type(value, known_names.get(key), validator) for key, value in call.arguments.items()}
    if not takes_others(validator.schema) and (others := sorted(set(arguments) - set(known_names), key=str)):
        found, expected = f"{call.name} is called with {echo(others[0])}", ", ".join(known_names) or "no arguments"
        yield Problem(Kind.ARGUMENTS, found, expected, "rename or drop the argument")
    elif (error := next(validator.iter_errors(arguments), None)) is not None:
        found, expected = f"{call.name} is called with {echo(call.arguments)}", describe(error)
        yield Problem(Kind.ARGUMENTS, found, expected, "repair the call or drop the row")


def with_type(value: Any, schema: Any, validator: Draft202012Validator) -> Any:
    """Text of a format that writes no types, as the type that the schema wants."""
    if not isinstance(value, Untyped) or schema is None or validator.evolve(schema=schema).is_valid(str(value)):
        return str(value) if isinstance(value, Untyped) else value
    try:
        return read_json(value.lower() if value in ("True", "False", "None") else value)
    except (ValueError, RecursionError):
        return str(value)


def null_padding(
    value: Any, schema: Any, validator: Draft202012Validator | None, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], bool | None]]:
    """See `ToolBook.null_padding`; `schema` is that of `value`, None where there is none."""
    plain = schema if isinstance(schema, Mapping) and not any(key in schema for key in OPEN) else {}
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from null_padding(each, plain.get("items"), validator, (*path, number))
        return
    if not isinstance(value, Mapping):
        return
    properties = plain.get("properties", {})
    for key, each in value.items():
        own = properties.get(key)
        if each is not None:
            yield from null_padding(each, own, validator, (*path, key))
        elif own is None:
            yield (*path, key), True if plain and not takes_others(plain) else None
        elif key not in plain.get("required", []) and validator and not validator.evolve(schema=own).is_valid(None):
            yield (*path, key), True


def takes_others(schema: Mapping[str, Any]) -> bool:
    """Whether arguments that the schema does not name are allowed on purpose; JSON Schema's own default is not one."""
    is_open = schema.get("additionalProperties", False) is not False or "properties" not in schema
    return is_open or any(key in schema for key in OPEN)


def with_nulls(schema: Any) -> Any:
    """The schema with OpenAPI's `nullable`, which transformers writes for Optional, said as JSON Schema says it."""
    if isinstance(schema, list):
        return [with_nulls(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    said = {key: with_nulls(each) for key, each in schema.items()}
    return {"anyOf": [said, {"type": "null"}]} if schema.get("nullable") is True else said


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
            schemas.append(schema_of(tool))
        else:
            schemas.append(tool)
    return schemas


def schema_of(tool: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function.

    Raises:
        ValueError: its docstring or its types say too little.
    """
    from transformers.utils import get_json_schema

    try:
        return get_json_schema(hide_context(tool))
    except Exception as error:  # of classes that transformers does not make public
        name = getattr(tool, "__name__", type(tool).__name__)
        expected = "expected a docstring with a line for each argument under Args:, and a type for each"
        raise ValueError(f"tools: {name} cannot be shown to a model ({error}); {expected}") from error


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
