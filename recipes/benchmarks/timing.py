"""Seconds on the wall and of the processor, and the machine they were taken on. Knows no workload."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import envmask_trl


@dataclass(frozen=True, slots=True)
class Spent:
    """Time that something took, or a moment to reckon from.

    Example:
        start = Spent.now(); work(); (Spent.now() - start).wall_s
    """

    wall_s: float
    cpu_s: float  # of all threads of this process

    @classmethod
    def now(cls) -> "Spent":
        return cls(time.perf_counter(), time.process_time())

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


NOTHING = Spent(0.0, 0.0)


def median_spent(times: Sequence[Spent]) -> Spent:
    return Spent(median(t.wall_s for t in times), median(t.cpu_s for t in times))


def machine() -> dict[str, Any]:
    """What has to be known to compare with figures from elsewhere."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl")},
        "envmask_trl": envmask_trl.__version__,
    }


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
