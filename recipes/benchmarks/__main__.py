"""How long and how much TRL 1.16's own tool loop and training step take, and this library's, on the same work.

    python -m recipes.benchmarks                  all of it: more than an hour on one core
    python -m recipes.benchmarks --only b --only e
    python -m recipes.benchmarks --quick          the same path in seconds; its figures mean nothing

Both trainers run in this process, one step in turn, with the same weights, prompts, tools and greedy decoding; a script
says which tokens may be chosen (`policy.py`), so that both play the same turns. TRL's `generate`, tool loop and loss
are TRL's. The first step of each side is not counted. Writes benchmarks.json, benchmarks.md and benchmarks.png.
"""

import argparse
import gc
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import accuracy, memory, overlap, phases, steps
from .report import write_report
from .results import Result
from .timing import Spent, machine

BENCHMARKS: dict[str, Callable[..., Result]] = {
    "a": steps.quickstart_step,
    "b": steps.tools_step,
    "c": steps.long_loss,
    "d": steps.slow_tools,
    "e": steps.many_turns,
    "f": memory.loss_memory,
    "g": phases.phase_shares,
    "h": steps.growth,
    "i": overlap.one_slow_tool,
    "accuracy": accuracy.logprob_accuracy,
}


def main(letters: Sequence[str], *, quick: bool, repeats: int, output_dir: Path) -> list[Result]:
    """Run the benchmarks of these letters and write the report."""
    torch.set_num_threads(1)  # both sides alike; a second thread makes times vary with what else the machine does
    about = machine() | {"repeats": repeats, "quick": quick}
    results, table = [], ""
    gc.freeze()  # each train() collects garbage first; what was imported is none
    for letter in letters:
        print(BENCHMARKS[letter].__doc__, flush=True)
        start = Spent.now()
        results.append(BENCHMARKS[letter](quick=quick, repeats=repeats))
        table = write_report(results, about, output_dir=output_dir)  # after each, so that a run that ends keeps them
        print(f"    {(Spent.now() - start).wall_s:.0f} s", flush=True)
    gc.unfreeze()
    print(table)
    return results


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")  # TRL 1.16 uses the old name
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="may be given more than once")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, help="5, or with --quick 0: the first step of each side counts")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args()
    main(
        options.only or list(BENCHMARKS),
        quick=options.quick,
        repeats=(0 if options.quick else 5) if options.repeats is None else options.repeats,
        output_dir=options.output_dir,
    )
