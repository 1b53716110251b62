"""What is wrong only between rows: the same conversation twice, values of two types. Keeps 16 bytes a row."""

import json
from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from ...trajectory import Message
from .conversation import Conversation
from .findings import Kind, Problem

JSON_TYPES = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
MAX_KEYS = 10_000  # places whose types are remembered
NUMBERS = ("id", "_id", "idx", "index", "uuid", "row_id", "__index_level_0__")  # columns that only number the rows


class SeenRows:
    """Finds conversations that occur twice, by a hash of 64 bits: 1 wrong pair in 37,000 runs over a million rows."""

    def __init__(self) -> None:
        self.hashes = array("Q")
        self.numbers = array("Q")

    def add(self, number: int, row: Mapping[str, Any], conversation: Conversation) -> None:
        """Of a prompt, the other columns count too, but its number: they may be the seed of its environment."""
        if conversation.is_prompt:
            what: Any = {key: value for key, value in row.items() if str(key).lower() not in NUMBERS}
        else:
            what = [conversation.messages, row.get("tools")]
        try:
            text = json.dumps(what, sort_keys=True, default=str)
        except TypeError:  # keys of two types have no order; no file has such
            text = repr(what)
        self.hashes.append(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big"))
        self.numbers.append(number)

    def problems(self) -> Iterator[tuple[int, Problem]]:
        """(row, problem) for each row that repeats an earlier one, in order of rows."""
        import numpy

        hashes = numpy.frombuffer(self.hashes, dtype=numpy.uint64)
        order = numpy.argsort(hashes, kind="stable")  # equal hashes stay in order of rows
        repeats = numpy.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        pairs = sorted((int(order[place + 1]), int(order[place])) for place in repeats)
        for later, earlier in pairs:
            found = f"the same conversation as {self.numbers[earlier]}"
            yield self.numbers[later], Problem(Kind.DUPLICATE, found, "each one once", "remove all but one")


class SeenTypes:
    """Finds values that have one type here and another there, which no Arrow column holds."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[int, str]] = {}  # place -> (row, type)
        self.reported: set[str] = set()
        self._last_tools: Any = None

    def add(self, number: int, row: Mapping[str, Any], messages: list[Message]) -> Iterator[Problem]:
        """Each place is reported once, with the row where its type was another."""
        for column, value in row.items():
            yield from self._see(number, str(column), value)
        tools = row.get("tools")
        if isinstance(tools, list) and tools != self._last_tools:
            self._last_tools = tools
            yield from self._walk(number, "tools", tools)
        for message in messages:
            yield from self._see(number, "content", message.get("content"))
            for call in message.get("tool_calls") or ():
                function = call.get("function", call) if isinstance(call, dict) else None
                if isinstance(function, dict):
                    yield from self._walk(number, "arguments", function.get("arguments"))
                    yield from self._see(number, "the id of a call", call.get("id"))

    def _walk(self, number: int, place: str, value: Any) -> Iterator[Problem]:
        """The value and all that is in it; the items of a list share one place."""
        yield from self._see(number, place, value)
        if isinstance(value, dict):
            for key, each in value.items():
                yield from self._walk(number, f"{place}.{key}", each)
        elif isinstance(value, list):
            for each in value:
                yield from self._walk(number, f"{place}[]", each)

    def _see(self, number: int, key: str, value: Any) -> Iterator[Problem]:
        kind = JSON_TYPES.get(type(value))
        if kind is None:  # a null fits every column
            return
        if key not in self.first and len(self.first) < MAX_KEYS:
            self.first[key] = (number, kind)
        row, expected = self.first.get(key, (number, kind))
        if kind != expected and key not in self.reported:
            self.reported.add(key)
            remedy = "write the column as JSON text (all arguments, all tools), or load it as datasets.Json"
            yield Problem(Kind.MIXED_TYPES, f"{key} is {kind}", f"{expected}, as in {row}", remedy)
