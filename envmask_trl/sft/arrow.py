"""Undoes what Arrow does to messages. Knows dicts: no tokens, no templates.

A column of structs has the keys of all its rows, so a call of `weather(city)` beside one of `calculator(expression)`
comes back as {"city": "Oslo", "expression": None}.
"""

import json
from collections.abc import Sequence
from typing import Any

from ..trajectory import Message
from .parts import Reason, RowProblem


def restored(message: Message, schemas: Sequence[dict[str, Any]]) -> Message:
    """The message without the nulls of other rows' keys, and with arguments decoded where they are a JSON object.

    A null argument is kept only where the tool's schema allows null; write arguments as JSON text to keep all.

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
    if not isinstance(call, dict):
        return call
    call = {key: value for key, value in call.items() if value is not None}
    if not isinstance(call.get("function"), dict):
        return call
    function = call["function"]
    return {**call, "function": {**function, "arguments": restored_arguments(function, schemas)}}


def restored_arguments(function: dict[str, Any], schemas: Sequence[dict[str, Any]]) -> Any:
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        nullable = nullable_parameters(function.get("name"), schemas)
        return {key: value for key, value in arguments.items() if value is not None or key in nullable}
    if isinstance(arguments, str):
        try:
            decoded = json.loads(arguments)
        except ValueError:
            return arguments  # a broken call is shown as it was written
        return decoded if isinstance(decoded, dict) else arguments
    return {} if arguments is None else arguments


def nullable_parameters(name: Any, schemas: Sequence[dict[str, Any]]) -> set[str]:
    """The parameters of a tool that its JSON schema allows to be null."""
    functions = [schema.get("function", schema) for schema in schemas]
    found: dict[str, Any] = next((function for function in functions if function.get("name") == name), {})
    properties = (found.get("parameters") or {}).get("properties") or {}
    return {key for key, schema in properties.items() if isinstance(schema, dict) and allows_null(schema)}


def allows_null(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type")
    options = [option for option in schema.get("anyOf") or () if isinstance(option, dict)]
    return (
        bool(schema.get("nullable"))
        or kinds == "null"
        or (isinstance(kinds, list) and "null" in kinds)
        or any(allows_null(option) for option in options)
    )


def tools_of_row(value: Any) -> list[dict[str, Any]]:
    """A row's `tools`: JSON text, or a list of JSON schemas whose nulls of other rows' keys are taken out.

    Raises:
        RowProblem: it is neither.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            says = f"the row's `tools` is no JSON ({error}); expected a list of JSON schemas"
            raise RowProblem(Reason.TOOLS, says) from error
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        says = f"the row's `tools` is {str(value)[:60]!r}, expected a list of JSON schemas or its JSON text"
        raise RowProblem(Reason.TOOLS, says)
    return [without_nulls(tool) for tool in value]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value
