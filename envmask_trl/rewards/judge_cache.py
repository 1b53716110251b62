"""Verdicts on disk, safe for several processes. Knows keys and numbers: no judge, no network."""

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any


class VerdictCache:
    """Points by a hash of everything that they depend on.

    Example:
        cache = VerdictCache("runs/judge.sqlite")
        cache.put(("Qwen3-32B", "rubric", "answer"), 8.0)
        cache.get(("Qwen3-32B", "rubric", "answer"))     # 8.0; None for any other key

    Args:
        path: the file, made with its folder; None keeps nothing.

    Raises:
        ValueError: it cannot be such a file.
    """

    def __init__(self, path: str | Path | None):
        if not isinstance(path, str | Path | None):
            raise ValueError(f"the cache is {path!r}, expected a file's path, or None for no cache")
        self.path = None if path is None else Path(path)
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self.open()) as connection, connection:
                connection.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, points REAL NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ValueError(
                f"the cache {str(path)!r} is no file of verdicts ({error}); give the path of a new file, or None"
            ) from error

    def open(self) -> sqlite3.Connection:
        assert self.path is not None
        return sqlite3.connect(self.path, timeout=30.0)  # per use: a connection belongs to one thread

    def get(self, key: Sequence[Any]) -> float | None:
        if self.path is None:
            return None
        with closing(self.open()) as connection:
            row = connection.execute("SELECT points FROM verdicts WHERE key = ?", (hashed(key),)).fetchone()
        return None if row is None else float(row[0])

    def put(self, key: Sequence[Any], points: float) -> None:
        if self.path is None:
            return
        with closing(self.open()) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (hashed(key), points))


def hashed(key: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()
