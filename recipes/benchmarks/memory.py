"""(f) The peak memory of a loss step, each side in a process of its own. Knows Linux's resident set: no times.

python -m recipes.benchmarks.memory ours

With --quick both share one process, as starting one takes longer than its step.
"""

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from ..resident_memory import peak_since_reset_mib, reset_peak, resident_mib
from .results import Figure, Result
from .steps import LONG, QUICK, described, given
from .trainers import SIDES, make_trainer, run_step
from .workloads import make_workload


def loss_memory(*, quick: bool, repeats: int) -> Result:
    """(f) What the loss step of (c) needs beyond what was there before."""
    mib: dict[str, float] = {}
    processes: list[tuple[str, ...]] = [SIDES] if quick else [(side,) for side in SIDES]
    for sides in processes:
        mib |= measured_apart(*sides, quick=quick)
    figure = Figure("peak of the loss step", mib["ours"] / mib["trl"], "x", mib["trl"], mib["ours"], 0.5, at_most=True)
    workload = make_workload(QUICK if quick else LONG)
    return Result("f", "memory of the loss step, ours / TRL in MiB", [figure], workload=described(workload))


def measured_apart(*sides: str, quick: bool) -> dict[str, float]:
    """The MiB of each of these sides, in a process of their own."""
    command = [sys.executable, "-m", __name__, *sides, *(["--quick"] if quick else [])]
    root = Path(__file__).parents[2]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    return {side: float(mib) for side, mib in json.loads(output.splitlines()[-1]).items()}


def peak_of_loss_mib(side: str, *, quick: bool) -> float:
    """Peak of the resident set from the first loss to the end of the step, less what was resident before it.

    Gradients are in it, and on our side the comparison of the first micro-batch with the padded forward; the optimizer
    keeps no state.
    """
    workload = make_workload(QUICK if quick else LONG)
    trainer = make_trainer(side, workload, rollout_func=given(workload), optim="sgd")
    before: list[float] = []
    compute_loss = trainer.compute_loss

    def first_noted(*args: Any, **kwargs: Any) -> Any:
        if not before:
            reset_peak()
            before.append(resident_mib("VmRSS"))
        return compute_loss(*args, **kwargs)

    trainer.compute_loss = first_noted
    run_step(trainer, workload)
    return peak_since_reset_mib() - before[0]


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", choices=SIDES, nargs="+")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({side: peak_of_loss_mib(side, quick=arguments.quick) for side in arguments.sides}))
