"""Documents on disk, read one at a time. Knows JSONL rows and byte offsets: no index, no words.

corpus.jsonl     {"id": "17", "title": "Oslo", "text": "Oslo is the capital of Norway."}
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..tool_values import to_text
from .retriever import Document

ROWS, OFFSETS, DIGEST = "documents.jsonl", "offsets.npy", "documents.digest"


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
        "id": to_text(str(number if identity is None else identity)),
        "title": to_text(str(row.get("title") or "")),
        "text": to_text(row["text"]),
    }


@contextmanager
def in_its_place_when_whole(folder: Path) -> Iterator[Path]:
    """A folder to write an index into; its files go to `folder` when all are there, none if writing fails.

    Files of an index that was there before are replaced, not written over: whoever has them mapped goes on reading.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-", dir=folder) as new:
        yield Path(new)
        for path in sorted(path for path in Path(new).rglob("*") if path.is_file()):
            target = folder / path.relative_to(new)
            target.parent.mkdir(exist_ok=True)
            path.replace(target)


def write_digest(folder: Path, index: str) -> None:
    """Note beside an index which documents it is of."""
    (folder / f"{index}.digest").write_text((folder / DIGEST).read_text())


class DocumentStore:
    """The documents of an index, memory-mapped: only those that are found are read.

    Example:
        for row in DocumentStore.stream(read_corpus("corpus.jsonl"), Path("index")): ...
        DocumentStore(Path("index"), "bm25").document(0, score=8.3)

    Args:
        index: the name under which `write_digest` noted which documents it is of.

    Raises:
        ValueError: files are missing or cut, or the index is of other documents.
    """

    def __init__(self, folder: Path, index: str):
        try:
            self.rows = np.memmap(folder / ROWS, dtype=np.uint8, mode="r")
            self.offsets = np.load(folder / OFFSETS, mmap_mode="r")  # [N + 1] where each row starts, in bytes
            digests = [(folder / name).read_text() for name in (DIGEST, f"{index}.digest")]
        except (OSError, ValueError) as error:
            raise ValueError(f"the documents in {folder} cannot be read ({error}); build the index again") from error
        if self.offsets[-1] != len(self.rows):
            raise ValueError(
                f"the documents in {folder} have {len(self.rows)} bytes, expected {self.offsets[-1]}; "
                "build the index again"
            )
        if len(set(digests)) > 1:
            raise ValueError(
                f"the {index} index in {folder} is of other documents than those that lie there now; build it again, "
                "each corpus in a folder of its own"
            )

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
        offsets, digest = [0], hashlib.blake2b(digest_size=16)
        with open(folder / ROWS, "wb") as file:
            for number, row in enumerate(rows):
                checked = checked_row(row, number)
                line = json.dumps(checked, ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                offsets.append(offsets[-1] + file.write(line))
                yield checked
        if len(offsets) == 1:
            raise ValueError("the corpus has no documents; expected at least one row with a `text`")
        np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
        (folder / DIGEST).write_text(digest.hexdigest())
