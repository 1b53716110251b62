"""Messages, calls and tools to build rows of. Knows no tokenizer, no linter."""

from typing import Any


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*names: str, ids: tuple[str, ...] | None = None, arguments: Any = None) -> dict[str, Any]:
    """An assistant's turn that calls these tools, all with the same arguments."""
    entries = [{"type": "function", "function": {"name": name, "arguments": arguments or {}}} for name in names]
    if ids is not None:
        entries = [{"id": call_id, **entry} for call_id, entry in zip(ids, entries, strict=True)]
    return {"role": "assistant", "content": "", "tool_calls": entries}


def result(content: str, **more: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """The JSON schema of a tool; `properties` gives a schema for each parameter."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def row(*messages: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"messages": list(messages), **columns}


TEXT = {"type": "string"}
NUMBER = {"type": "number"}
CLEAN = row(user("How warm is Oslo?"), calls("weather"), result("7 C"), says("It is 7 C."))
