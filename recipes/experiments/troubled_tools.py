"""Tools as they are in the world: slow, failing, now and then hanging. Knows functions and seconds: no trainer.

calls   weather(Oslo)   weather(Lima)          calculator(27-13)   weather(Oslo)
        0.05 s, report  0.05 s, RuntimeError   2 s, then "14"      0.05 s, report
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import count
from threading import Lock


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with every tool.

    Example:
        Trouble(latency_s=0.05, failing=0.1, hanging=0.02)
    """

    latency_s: float = 0.0
    failing: float = 0.0  # share of the calls that raise
    hanging: float = 0.0  # share of the calls that take `hang_s`; it has an end, for TRL has no deadline
    hang_s: float = 2.0


class Waits:
    """A clock of what a run takes on a machine with nothing else to do: seconds of the processor, and of waiting.

    What a call sleeps beyond what the processor does meanwhile is waiting. A busy machine, on which the processor does
    less meanwhile, makes it larger, never smaller.

    Example, two calls of 2 s at once, of which 0.5 s are computed through:
        waits.total_s -> 1.5
    """

    def __init__(self, deadline_s: float = float("inf"), cpu: Callable[[], float] = time.process_time) -> None:
        self.total_s = 0.0
        self.deadline_s = deadline_s  # after which nobody waits for a call any more
        self.cpu = cpu
        self._lock = Lock()

    def now_s(self) -> float:
        return self.cpu() + self.total_s

    def sleep(self, seconds: float) -> None:
        waited_for = min(seconds, self.deadline_s)
        end_s = self.now_s() + waited_for
        time.sleep(waited_for)
        with self._lock:
            self.total_s += max(0.0, end_s - self.now_s())
        time.sleep(seconds - waited_for)


def troubled(tools: list[Callable[..., str]], trouble: Trouble, *, seed: int, waits: Waits) -> list[Callable[..., str]]:
    """The same tools with their trouble; the n-th call of a seed has the same fate whoever makes it."""
    numbers = count()

    def wrapped(tool: Callable[..., str]) -> Callable[..., str]:
        @wraps(tool)
        def call(*args: object, **kwargs: object) -> str:
            fate = random.Random(f"{seed}/{next(numbers)}").random()
            hangs = fate < trouble.hanging
            waits.sleep(trouble.hang_s if hangs else trouble.latency_s)
            if not hangs and fate < trouble.hanging + trouble.failing:
                raise RuntimeError("the service is not available")
            return tool(*args, **kwargs)

        return call

    return [wrapped(tool) for tool in tools]
