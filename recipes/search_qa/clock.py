"""How long the phases of a run take, by the wall and in CPU time. Knows no phase by name."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Seconds of each phase.

    Example:
        with clock.timed("SFT"): ...
        clock.seconds["SFT"], clock.cpu_seconds["SFT"]   # on a busy machine only the second can be compared
    """

    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        print(f"{phase} ...", flush=True)
        started, cpu_started = time.perf_counter(), time.process_time()
        yield
        self.seconds[phase] = time.perf_counter() - started
        self.cpu_seconds[phase] = time.process_time() - cpu_started
