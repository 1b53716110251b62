"""Puts another value in an attribute's place for a while. Knows nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def swapped(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, `holder` has this value under `name`; afterwards, also when something is raised, the one it had."""
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)
