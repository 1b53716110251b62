"""(f) The peak memory of a loss step, each side in a process of its own. Knows the resident set: no times.

python -m recipes.benchmarks.memory ours
"""

import argparse
import json
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import psutil
import torch

from .results import Figure, Result
from .steps import LONG, QUICK, described, given
from .trainers import SIDES, make_trainer, run_step
from .workloads import make_workload

MIB = 2**20


def loss_memory(*, quick: bool, repeats: int) -> Result:
    """(f) What the loss step of (c) needs beyond what was there before."""
    mib = {side: measured_apart(side, quick=quick) for side in SIDES}
    figure = Figure("peak of the loss step", mib["ours"] / mib["trl"], "x", mib["trl"], mib["ours"], 0.5, at_most=True)
    workload = make_workload(QUICK if quick else LONG)
    return Result("f", "memory of the loss step, ours / TRL in MiB", [figure], workload=described(workload))


def measured_apart(side: str, *, quick: bool) -> float:
    command = [sys.executable, "-m", __name__, side, *(["--quick"] if quick else [])]
    root = Path(__file__).parents[2]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    return float(json.loads(output.splitlines()[-1])["mib"])


def peak_of_loss_mib(side: str, *, quick: bool) -> float:
    """Peak of the resident set during the first loss, forward and backward, less what was resident before it.

    The weights, the batch and (on our side, once) the comparison with the padded forward: all is in one process that
    did nothing large before. The optimizer keeps no state.
    """
    workload = make_workload(QUICK if quick else LONG)
    trainer = make_trainer(side, workload, rollout_func=given(workload), optim="sgd")
    before: list[int] = []
    compute_loss = trainer.compute_loss

    def first_noted(*args: Any, **kwargs: Any) -> Any:
        before.append(psutil.Process().memory_info().rss)
        return compute_loss(*args, **kwargs)

    trainer.compute_loss = first_noted
    run_step(trainer, workload)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB - before[0] / MIB


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"mib": peak_of_loss_mib(arguments.side, quick=arguments.quick)}))
