"""Where a run writes its rollouts, so that none is written over another. Knows paths: not what is in them."""

from collections import Counter
from itertools import count
from pathlib import Path


class RolloutFiles:
    """The files of one process of one run.

    Example:
        files = RolloutFiles(Path("runs/agent/rollouts"), process=0)
        files.next_path(step=12)   # runs/agent/rollouts/step-000012-process-0.parquet
        files.next_path(step=12)   # ...-process-0-1.parquet: a step of several generations has several files
    """

    def __init__(self, folder: Path, *, process: int):
        self.folder = folder
        self.process = process
        self.written: Counter[int] = Counter()

    def next_path(self, *, step: int) -> Path:
        """A resumed run writes the steps behind its checkpoint anew, under the names that they had."""
        before = self.written[step]
        self.written[step] += 1
        return self.folder / f"step-{step:06d}-process-{self.process}{f'-{before}' if before else ''}.parquet"

    def groups(self, rows: int, *, step: int, processes: int, group_size: int) -> list[int]:
        """The group of each row of the next file, numbered within the step over all its files.

        Each process has as many rows of a generation, in order of process, so a group may reach from one to the next.
        """
        first = (self.written[step] * processes + self.process) * rows
        return [(first + row) // group_size for row in range(rows)]

    def set_earlier_aside(self) -> Path | None:
        """Give the files of an earlier run another folder, beside this one; None if there are none."""
        if not any(self.folder.glob("step-*.parquet")):
            return None
        names = (self.folder.with_name(f"{self.folder.name}-{number}") for number in count(1))
        return self.folder.rename(next(path for path in names if not path.exists()))
