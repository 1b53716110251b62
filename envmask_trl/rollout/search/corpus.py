"""Documents on disk, read one at a time. Knows JSONL rows and byte offsets: no index, no words.

corpus.jsonl     {"id": "17", "title": "Oslo", "text": "Oslo is the capital of Norway."}
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .retriever import Document

ROWS, OFFSETS = "documents.jsonl", "offsets.npy"


def read_corpus(path: str | Path) -> Iterator[dict[str, str]]:
    """The rows of a JSONL file with `id`, `title` and `text`, one at a time; a title or id may be missing.

    Raises:
        ValueError: a line is not a JSON object with a `text`, with file and line.
    """
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error}); expected one object a line") from error
            try:
                yield checked_row(row, number - 1)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None


def checked_row(row: Any, number: int) -> dict[str, str]:
    """A row with the three texts that a document has; the id is its number where it has none."""
    if not isinstance(row, Mapping) or not isinstance(row.get("text"), str):
        found = f"fields {sorted(row)}" if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(f"found {found}, expected an object with a `text`, and usually `id` and `title`")
    identity = row.get("id")
    return {
        "id": str(number if identity is None else identity),
        "title": str(row.get("title") or ""),
        "text": row["text"],
    }


class DocumentStore:
    """The documents of an index, memory-mapped: only those that are found are read.

    Example:
        for row in DocumentStore.stream(read_corpus("corpus.jsonl"), Path("index")): ...
        DocumentStore(Path("index")).document(0, score=8.3)
    """

    def __init__(self, folder: Path):
        self.rows = np.memmap(folder / ROWS, dtype=np.uint8, mode="r")
        self.offsets = np.load(folder / OFFSETS, mmap_mode="r")  # [N + 1] where each row starts, in bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def document(self, number: int, *, score: float) -> Document:
        start, end = self.offsets[number : number + 2].tolist()
        return Document(**json.loads(self.rows[start:end].tobytes()), score=score)

    @classmethod
    def stream(cls, rows: Iterable[Mapping[str, Any]], folder: Path) -> Iterator[dict[str, str]]:
        """Write the rows while they are read: each is yielded once it is on disk.

        Raises:
            ValueError: there is not one row, or one has no text.
        """
        folder.mkdir(parents=True, exist_ok=True)
        offsets = [0]
        with open(folder / ROWS, "wb") as file:
            for number, row in enumerate(rows):
                checked = checked_row(row, number)
                offsets.append(offsets[-1] + file.write(json.dumps(checked, ensure_ascii=False).encode() + b"\n"))
                yield checked
        if len(offsets) == 1:
            raise ValueError("the corpus has no documents; expected at least one row with a `text`")
        np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
