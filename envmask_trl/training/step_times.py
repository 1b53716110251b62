"""Where the time of a training step goes, and how much of what is forwarded is padding. Knows clocks and sums only.

sampling  tools  observations  packing  rewards  loss      the rest of TRL's step_time is mostly the backward pass
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

PHASES = ("sampling", "tools", "observations", "packing", "rewards", "loss")


@dataclass(slots=True)
class ForwardCounts:
    """Tokens of the rows that were scored, and the columns in which the model was given them.

    Example:
        ForwardCounts(row_tokens=400, columns=300, padding=20)  # what rows begin with in common is forwarded once
    """

    row_tokens: int = 0
    columns: int = 0
    padding: int = 0  # of the columns: those that hold no token of any row

    def add(self, *, row_tokens: int, columns: int, padding: int) -> None:
        self.row_tokens += row_tokens
        self.columns += columns
        self.padding += padding


class StepTimes:
    """Adds up seconds and tokens of this process until they are logged; no collective.

    Example:
        times = StepTimes()
        with times.phase("tools"):
            results = runner.run(jobs)
        times.metrics(steps=1)  # {"env_mask/time/tools_s": 0.2, ...}
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.forwarded = ForwardCounts()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to a phase, one of PHASES, whether it raises or not."""
        start_s = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start_s

    def metrics(self, *, steps: int) -> dict[str, float]:
        """Seconds per optimizer step and shares of what was forwarded, since the last call; what never ran is left out.

        Args:
            steps: optimizer steps since the last call.
        """
        seconds, forwarded = self.seconds, self.forwarded
        self.seconds, self.forwarded = {}, ForwardCounts()
        metrics = {f"env_mask/time/{name}_s": seconds[name] / max(steps, 1) for name in PHASES if name in seconds}
        if forwarded.columns:
            metrics["env_mask/padded_share"] = forwarded.padding / forwarded.columns
            metrics["env_mask/forwarded_share"] = forwarded.columns / forwarded.row_tokens
        return metrics
