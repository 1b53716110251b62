"""What is wrong only between rows: the same conversation twice, arguments of two types. Keeps 16 bytes a row."""

import json
from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from ...trajectory import Message
from .conversation import Conversation
from .findings import Kind, Problem

JSON_TYPES = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
MAX_KEYS = 10_000  # arguments whose types are remembered


class SeenRows:
    """Finds conversations that occur twice, by a hash of 64 bits: 1 wrong pair in 37,000 runs over a million rows."""

    def __init__(self) -> None:
        self.hashes = array("Q")
        self.numbers = array("Q")

    def add(self, number: int, row: Mapping[str, Any], conversation: Conversation) -> None:
        """Of a prompt, the other columns count too: they may be the seed of its environment."""
        what = row if conversation.is_prompt else conversation.messages
        text = json.dumps(what, sort_keys=True, default=str)
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
    """Finds arguments that have one type here and another there, which no Arrow column holds."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[int, str]] = {}  # key -> (row, type)
        self.reported: set[str] = set()

    def add(self, number: int, messages: list[Message]) -> Iterator[Problem]:
        """Each argument is reported once, with the row where its type was another."""
        for message in messages:
            for call in message.get("tool_calls") or ():
                function = call.get("function", call) if isinstance(call, dict) else None
                arguments = function.get("arguments") if isinstance(function, dict) else None
                if arguments is None:
                    continue
                yield from self._see(number, "arguments", arguments)
                if isinstance(arguments, dict):
                    for key, value in arguments.items():
                        yield from self._see(number, f"arguments.{key}", value)

    def _see(self, number: int, key: str, value: Any) -> Iterator[Problem]:
        kind = JSON_TYPES.get(type(value))
        if kind is None:  # a null fits every column
            return
        if key not in self.first and len(self.first) < MAX_KEYS:
            self.first[key] = (number, kind)
        row, expected = self.first.get(key, (number, kind))
        if kind != expected and key not in self.reported:
            self.reported.add(key)
            remedy = "write all arguments as JSON text, or load the column as datasets.Json"
            yield Problem(Kind.MIXED_TYPES, f"{key} is {kind}", f"{expected}, as in {row}", remedy)
