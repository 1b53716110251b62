"""Writes a copy of a data set without Arrow's nulls. Changes nothing else, and never the data set itself."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .rows import Row


@contextmanager
def repaired_copy(path: str | os.PathLike, source: Any) -> Iterator[Callable[[Row, dict[str, Any] | None], None]]:
    """A function that writes a row, repaired or as it is, to a new JSONL file; a half-written file is never left.

    Lines that need no repair, broken ones included, are copied byte by byte.

    Raises:
        ValueError: the file exists, or is not `.jsonl`.
    """
    path = Path(path)
    if path.suffix != ".jsonl":
        raise ValueError(f"fix is {path}, but a repaired copy is JSONL; give a path that ends in .jsonl")
    if path.exists():
        same = isinstance(source, str | os.PathLike) and path.resolve() == Path(source).resolve()
        what = "is the data set itself" if same else "exists already"
        raise ValueError(f"fix is {path}, which {what}; give the path of a new file")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as copy:
            yield lambda row, repaired: _write(copy, row, repaired)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write(copy: Any, row: Row, repaired: dict[str, Any] | None) -> None:
    if repaired is None and row.text is not None:
        copy.write(row.text if row.text.endswith(b"\n") else row.text + b"\n")
    else:
        values = row.values if repaired is None else repaired
        if isinstance(values, dict):
            copy.write(json.dumps(values, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")
