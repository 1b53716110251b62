"""Starts scripts as a user would, in processes of their own. Knows commands: nothing of what the scripts do."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent


# `accelerate launch --cpu` starts one process, whatever it is told, unless mpirun is there; torchrun starts two.
LAUNCHERS = {
    "python": (),
    "accelerate": ("-m", "accelerate.commands.launch", "--cpu"),
    "two processes": ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
}


def start(*command: str, cwd: Path, launcher: str = "python") -> subprocess.Popen[str]:
    """`command` under one of LAUNCHERS; what it prints goes to `cwd/output.txt`."""
    with (cwd / "output.txt").open("w", encoding="utf-8") as stream:
        return subprocess.Popen(
            [sys.executable, *LAUNCHERS[launcher], *command],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def run(*command: str, cwd: Path, launcher: str = "python", timeout_s: float = 180.0) -> tuple[int, str]:
    """Exit status and output of `start`; a process that runs for longer is killed with its children: TimeoutExpired."""
    process = start(*command, cwd=cwd, launcher=launcher)
    try:
        status = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return status, (cwd / "output.txt").read_text(encoding="utf-8")


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process and to all that it started, those in sessions of their own included."""
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, 9)
    process.wait()
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
