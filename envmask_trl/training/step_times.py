"""Where the time of a training step goes. Knows clocks and sums only.

sampling  tools  observations  packing  rewards  loss      the rest of TRL's step_time is mostly the backward pass

Tools that are at work while others are sampled take none of it: their time is what is waited for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

PHASES = ("sampling", "tools", "observations", "packing", "rewards", "loss")


class StepTimes:
    """Adds up seconds of this process until they are logged; no collective.

    Example:
        times = StepTimes()
        with times.phase("tools"):
            results = runner.run(jobs)
        times.metrics(steps=1)  # {"env_mask/time/tools_s": 0.2, ...}
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to a phase, one of PHASES, whether it raises or not."""
        start_s = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start_s

    def metrics(self, *, steps: int) -> dict[str, float]:
        """Seconds per optimizer step since the last call; a phase that never ran is left out.

        Args:
            steps: optimizer steps since the last call.
        """
        seconds, self.seconds = self.seconds, {}
        return {f"env_mask/time/{name}_s": seconds[name] / max(steps, 1) for name in PHASES if name in seconds}
