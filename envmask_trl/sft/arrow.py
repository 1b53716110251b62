"""Undoes what Arrow does to messages. Knows dicts: no tokens, no templates.

A column of structs has the keys of all its rows, so a call of `weather(city)` beside one of `calculator(expression)`
comes back as {"city": "Oslo", "expression": None}. JSON text comes back as it was, and nothing is taken out of it.
"""

import json
from collections.abc import Sequence
from typing import Any

from ..trajectory import Message
from .parts import Reason, RowProblem


def restored(message: Message, schemas: Sequence[dict[str, Any]]) -> Message:
    """The message without the nulls of other rows' keys, and with arguments decoded where they are a JSON object.

    A null in a call's arguments is kept only where the tool's schema allows null; write arguments as JSON text to keep
    all.

    Example:
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
         "name": None}
        -> {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]}
    """
    message = {key: value for key, value in message.items() if value is not None}
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [restored_call(call, schemas) for call in message["tool_calls"]]}


def restored_call(call: Any, schemas: Sequence[dict[str, Any]]) -> Any:
    """A call, `{"function": {"name": .., "arguments": ..}}` or flat; arguments that it lacks are not made up."""
    if not isinstance(call, dict):
        return call
    arguments = {"arguments": restored_arguments(call, schemas)} if "arguments" in call else {}
    call = {key: value for key, value in call.items() if value is not None}
    if "function" in call:
        return {**call, "function": restored_call(call["function"], schemas)}
    return call | arguments


def restored_arguments(function: dict[str, Any], schemas: Sequence[dict[str, Any]]) -> Any:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            decoded = json.loads(arguments)
        except ValueError:
            return arguments  # a broken call is shown as it was written
        return decoded if isinstance(decoded, dict) else arguments
    functions = [schema.get("function", schema) for schema in schemas]
    found: dict[str, Any] = next((each for each in functions if each.get("name") == function.get("name")), {})
    return {} if arguments is None else restored_value(arguments, found.get("parameters"))


def restored_value(value: Any, schema: Any) -> Any:
    """A value without the nulls that its JSON schema does not allow, at any depth; a list keeps its own.

    Example:
        restored_value({"lo": 1, "hi": None}, {"properties": {"lo": {"type": "integer"}}}) == {"lo": 1}
    """
    options = [schema, *options_of(schema)] if isinstance(schema, dict) else []
    if isinstance(value, list):
        items = next((option["items"] for option in options if option.get("items")), None)
        return [restored_value(each, items) for each in value]
    if not isinstance(value, dict):
        return value
    properties = {key: each for option in options for key, each in (option.get("properties") or {}).items()}
    return {
        key: restored_value(each, properties.get(key))
        for key, each in value.items()
        if each is not None or allows_null(properties.get(key))
    }


def allows_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type")
    return (
        bool(schema.get("nullable"))
        or kinds == "null"
        or (isinstance(kinds, list) and "null" in kinds)
        or None in (schema.get("default", ""), schema.get("const", ""), *(schema.get("enum") or ()))
        or any(allows_null(option) for option in options_of(schema))
    )


def options_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    options = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return [option for option in options if isinstance(option, dict)]


def tools_of_row(value: Any) -> list[dict[str, Any]]:
    """A row's `tools`: JSON text, or a list of JSON schemas whose nulls of other rows' keys are taken out.

    Raises:
        RowProblem: it is neither.
    """
    tools = value
    if isinstance(value, str):
        try:
            tools = json.loads(value)
        except ValueError as error:
            says = f"the row's `tools` is no JSON ({error}); expected a list of JSON schemas"
            raise RowProblem(Reason.TOOLS, says) from error
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        says = f"the row's `tools` is {str(value)[:60]!r}, expected a list of JSON schemas or its JSON text"
        raise RowProblem(Reason.TOOLS, says)
    return tools if isinstance(value, str) else [without_nulls(tool) for tool in tools]


def without_nulls(schema: Any, *, by_name: bool = False) -> Any:
    """A JSON schema without null keys, but for a `default` or `const` that is null where the rest of it allows null.

    Args:
        schema: a schema or a part of one.
        by_name: its keys are names of parameters, one of which may be called "default".
    """
    if isinstance(schema, list):
        return [without_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {key: each for key, each in schema.items() if key not in ("default", "const")}
    literal = ("default", "const") if not by_name and allows_null(rest) else ()
    return {
        key: each if key in literal else without_nulls(each, by_name=key == "properties" and not by_name)
        for key, each in schema.items()
        if each is not None or key in literal
    }
