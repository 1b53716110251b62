"""The peak of a part of a run, from Linux's resident set; elsewhere the peak of the whole process so far."""

import resource
import sys
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """The high-water mark begins anew, see proc_pid_clear_refs(5)."""
    if RESET.exists():
        RESET.write_text("5")


def peak_since_reset_mib() -> float:
    if STATUS.exists():  # `ru_maxrss` would also count what was before the reset, and what the parent process had
        return resident_mib("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def resident_mib(field: str) -> float:
    """A field of /proc/self/status, such as VmRSS, so on Linux only."""
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) / 1024
