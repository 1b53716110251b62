"""Starts scripts as a user would, in processes of their own. Knows commands: nothing of what the scripts do."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def start(
    *command: str, cwd: Path, processes: int | None = None, output: Path | None = None
) -> subprocess.Popen[str]:
    """`python command`, or with `processes` the same under `accelerate launch --cpu`; both streams go to `output`."""
    launcher = [sys.executable]
    if processes is not None:
        launcher += ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", str(processes)]
        launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    stream = (output or cwd / "output.txt").open("w", encoding="utf-8")
    with stream:
        return subprocess.Popen(
            [*launcher, *command],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def run(*command: str, cwd: Path, processes: int | None = None, timeout_s: float = 120.0) -> tuple[int, str]:
    """Exit status and output of `start`; a process that runs for longer is killed with its children: TimeoutExpired."""
    process = start(*command, cwd=cwd, processes=processes)
    try:
        status = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return status, (cwd / "output.txt").read_text(encoding="utf-8")


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process and to all that it started."""
    os.killpg(process.pid, 9)
    process.wait()
