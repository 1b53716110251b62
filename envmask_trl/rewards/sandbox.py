"""Runs a model's Python in a process of its own. Knows code and limits: no rewards, no rollouts.

    parent   cases ("add(1, 2)")  -->  child: code, then each expression  -->  values as JSON  -->  parent compares

Expected values never enter the child, so code that ends early, patches comparison or prints "passed" gains nothing.

What holds it, on Linux: a directory of its own, an empty environment, `python -I -S`, limits on CPU time, memory, file
size, open files and processes, a deadline after which the whole process group is killed, no network where `unshare
--net` works, and an audit hook that refuses sockets, processes, signals, ctypes and writing elsewhere. Only the
standard library can be imported. What it is not: a wall against code that attacks the interpreter or the kernel, or
that reads files which this user may read. For code that nobody looks at, run the training in a container.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from typing import IO, Any

CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one run may use.

    Example:
        SandboxLimits(timeout_s=2.0, memory_mb=256)
    """

    timeout_s: float = 5.0  # wall clock and CPU, for all cases of one rollout together
    memory_mb: int = 512  # address space
    file_mb: int = 1  # the largest file, and with it the largest answer
    processes: int = 32  # of this user; the kernel does not count root's

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.memory_mb < 64 or self.file_mb < 1 or self.processes < 1:
            raise ValueError(f"{self} cannot run anything; expected timeout_s > 0, memory_mb >= 64 and the others >= 1")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one expression.

    Example:
        Outcome(value=3)     Outcome(error="NameError: name 'ad' is not defined")
    """

    value: Any = None
    error: str = ""  # empty: there is a value


def evaluate(
    code: str, expressions: list[str], *, setup: str = "", limits: SandboxLimits | None = None
) -> list[Outcome]:
    """The value of each expression after `setup` and `code` have run, as JSON knows values.

    Tuples become lists. A value that JSON does not know, an exception, a time-out or an early exit is an error.

    Example:
        evaluate("def add(a, b): return a + b", ["add(1, 2)", "add('x', 1)"])
        [Outcome(value=3), Outcome(error="TypeError: can only concatenate str ...")]
    """
    limits = limits or SandboxLimits()
    with tempfile.TemporaryDirectory(prefix="envmask-code-", ignore_cleanup_errors=True) as folder:
        job = {"code": code, "setup": setup, "expressions": expressions, "limits": as_rlimits(limits)}
        with tempfile.TemporaryFile() as values:  # without a name: the code cannot put something else in its place
            ended = run_child(json.dumps(job), Path(folder), limits, values)
            values.seek(0)
            outcomes = read_outcomes(values.read(limits.file_mb * 2**20))
    missing = ended or "the code ended the process before this expression"
    return [outcomes.get(number, Outcome(error=missing)) for number in range(len(expressions))]


def run_child(job: str, folder: Path, limits: SandboxLimits, values: IO[bytes]) -> str:
    """Run the child to its end or its deadline; why it has no more values, "" if it ended by itself.

    Args:
        values: an open file for the child's answers.
    """
    process = subprocess.Popen(
        [*network_cut(), sys.executable, "-I", "-S", str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=values,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        start_new_session=True,
        text=True,
    )
    try:
        process.communicate(job, timeout=limits.timeout_s)
        return ""
    except subprocess.TimeoutExpired:
        return f"no answer within {limits.timeout_s:g} s"
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen) -> None:
    """End the child and whatever it started, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_outcomes(answers: bytes) -> dict[int, Outcome]:
    """The lines that the child wrote, by number of the expression; a line that is no such thing is left out."""
    outcomes: dict[int, Outcome] = {}
    for line in answers.split(b"\n"):
        try:
            entry = json.loads(line)
            number, error = int(entry["number"]), str(entry.get("error") or "")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            continue
        outcomes.setdefault(number, Outcome(None if error else entry.get("value"), error))
    return outcomes


def as_rlimits(limits: SandboxLimits) -> dict[str, int]:
    """By the names of Python's `resource` module."""
    return {
        "RLIMIT_CPU": max(1, round(limits.timeout_s)),
        "RLIMIT_AS": limits.memory_mb * 2**20,
        "RLIMIT_FSIZE": limits.file_mb * 2**20,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_CORE": 0,
    }


@cache
def network_cut() -> tuple[str, ...]:
    """The command that starts a process without a network, () where this system does not allow it."""
    command = which("unshare")
    if command is None:
        return ()
    cut = (command, "--map-root-user", "--net")
    tried = subprocess.run([*cut, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return cut if tried.returncode == 0 else ()
