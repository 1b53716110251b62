"""Results as JSON, one line an arm, so that a run that dies keeps what it has. Knows files, no training."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import envmask_trl

Record = dict[str, Any]
Key = tuple[str, int]  # arm and seed
PACKAGES = ("torch", "transformers", "trl")


def append(path: Path, record: Record) -> None:
    """Add a record in one write, so that processes may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def load(path: Path) -> list[Record]:
    """All records, in the order in which they were finished; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def finished(path: Path) -> set[Key]:
    """Arms and seeds that need not be run again."""
    return {(record["arm"], record["seed"]) for record in load(path)}


def by_arm(records: list[Record]) -> dict[str, dict[int, Record]]:
    """{arm: {seed: record}}, arms in the order of the file.

    Raises:
        ValueError: an arm and seed stand there twice, or an arm was run with different settings.
    """
    arms: dict[str, dict[int, Record]] = {}
    for record in records:
        seeds = arms.setdefault(record["arm"], {})
        if record["seed"] in seeds:
            raise ValueError(f"arm {record['arm']!r} has seed {record['seed']} twice; remove one of the two lines")
        first = next(iter(seeds.values()), record)
        if (first["settings"], first["steps"]) != (record["settings"], record["steps"]):
            raise ValueError(
                f"arm {record['arm']!r} has seeds with different settings or numbers of steps; run them alike"
            )
        seeds[record["seed"]] = record
    return arms


def circumstances() -> Record:
    """Versions and machine, for the record."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "envmask_trl": envmask_trl.__version__,
        **{package: version(package) for package in PACKAGES},
    }


def rounded(values: list[float], digits: int = 5) -> list[float]:
    """The values with so many significant digits: what a curve needs."""
    return [float(f"{value:.{digits}g}") for value in values]
