"""Rows of a file or a data set, one at a time, whatever is in them. Knows JSON and Arrow: no conversations."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from .findings import Kind, Problem, echo

BATCH_ROWS = 1000
OTHER_FILES = {
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a parquet file under another name",
    b"ARROW1": "an Arrow file",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
FIX_JSON = "write one JSON object a line, for example with json.dumps"


class Row(NamedTuple):
    """One row, or why it cannot be read.

    Example:
        Row(number=3, values={"messages": [...]}, text=b'{"messages": ...}\n')
    """

    number: int
    values: dict[str, Any] | Problem
    text: bytes | None = None  # the line of a file

    @property
    def may_have_nulls(self) -> bool:
        return self.text is None or b"null" in self.text


def read_rows(data: str | os.PathLike | Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Rows of a `.jsonl` or `.parquet` file, of a `datasets.Dataset` or `IterableDataset`, or of any iterable.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a folder, or something that has no rows.
    """
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; expected a .jsonl or .parquet file")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; expected a .jsonl or .parquet file: lint its files one by one")
        if path.suffix == ".parquet":
            return read_parquet(path)
        check_lines(path)
        return read_lines(path)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ValueError(f"data is a {type(data).__name__}; expected a path, a Dataset (one split) or a list of rows")
    return read_mappings(data)


def check_lines(path: Path) -> None:
    """Raise where a file is something else than lines, before each of its lines is called broken."""
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    what = next((name for magic, name in OTHER_FILES.items() if start.startswith(magic)), None)
    if what is None and path.suffix == ".json" and start.startswith(b"["):
        what = "one JSON list"
    if what is not None:
        raise ValueError(f"{path} is {what}; expected one JSON object a line in UTF-8 (.jsonl), or a .parquet file")


def read_lines(path: Path) -> Iterator[Row]:
    """The lines of a JSONL file, numbered from 1 as an editor does; empty lines are passed over."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield Row(number, read_line(line), line)


def read_line(line: bytes) -> dict[str, Any] | Problem:
    try:
        values = read_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Problem(Kind.BROKEN_JSON, f"byte {error.start} is not UTF-8", "UTF-8", "save the file as UTF-8")
    except (ValueError, RecursionError) as error:
        return Problem(Kind.BROKEN_JSON, describe_json_error(error, line), "one JSON object", FIX_JSON)
    if not isinstance(values, dict):
        found = f"a {type(values).__name__}, {echo(values)}"
        return Problem(Kind.BROKEN_JSON, found, "one JSON object a line", FIX_JSON)
    if HALF.search(line) and (half := find_half(values)) is not None:
        found = f"half a character (a lone surrogate) in {echo(half)}"
        return Problem(Kind.BROKEN_JSON, found, "whole characters", "cut texts between characters, not UTF-16 units")
    return values


def find_half(value: Any) -> str | None:
    """The first text with a lone surrogate, which neither Arrow nor a tokenizer takes."""
    if isinstance(value, str):
        return value if not value.isascii() and re.search("[\ud800-\udfff]", value) else None
    parts = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((half for part in parts if (half := find_half(part)) is not None), None)


def read_json(text: str) -> Any:
    """Decode JSON as strictly as Arrow does: no NaN, no Infinity, no whole number beyond 64 bits, no key twice.

    Raises:
        ValueError: it is not JSON.
    """
    return STRICT.decode(text)


def describe_json_error(error: Exception, text: bytes | str) -> str:
    """What is wrong, and the text around the place."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error) if isinstance(error, ValueError) else "too many brackets inside each other"
    around = text.decode("utf-8") if isinstance(text, bytes) else text
    return f"{error.msg} at character {error.pos}: {echo(around[max(error.pos - 20, 0) : error.pos + 20])}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {echo(digits)}, which is beyond all floats")
    return number


def _whole(digits: str) -> int:
    if len(digits) < 19:
        return int(digits)
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise ValueError(f"the number {echo(digits)}, which has more than 64 bits")
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {echo(twice)} twice in one object")
    return values


STRICT = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once
)
HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def read_parquet(path: Path) -> Iterator[Row]:
    from pyarrow import ArrowInvalid, parquet

    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file: {error}; expected .parquet or .jsonl") from error
    with file:
        rows = (row for batch in file.iter_batches(BATCH_ROWS) for row in batch.to_pylist())
        yield from (Row(number, row) for number, row in enumerate(rows))


def read_mappings(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    if not isinstance(rows, list | tuple):
        from datasets import Dataset, IterableDataset  # whoever has one has imported it already

        if isinstance(rows, Dataset | IterableDataset):
            rows = _in_batches(rows)
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            yield Row(number, dict(row))
        else:
            found = f"a {type(row).__name__}, {echo(row)}"
            yield Row(number, Problem(Kind.COLUMNS, found, "a mapping from column to value", "give rows as dicts"))


def _in_batches(dataset: Any) -> Iterator[dict[str, Any]]:
    """A data set's rows, several times faster than by its own iterator."""
    for batch in dataset.iter(BATCH_ROWS):
        yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
