"""How fast each mode of credit learns two tasks in which few steps matter.

    python -m recipes.credit              2 tasks x 4 modes x 5 seeds: about three minutes of CPU time
    python -m recipes.credit --quick      the same path in seconds; its figures mean nothing

Writes credit.json after each run, and goes on with what is there; then credit.md and credit.png. `docs/credit.md` has
what one benchmark showed, on tasks and with a learning rate that were chosen by looking at seed 0.
"""

import argparse
import warnings
from pathlib import Path

import torch

from .policy import random_picker, word_tokenizer
from .report import load_runs, save_runs, write_report
from .tasks import TASKS
from .train import CREDITS, LEARNING_RATE, NUM_GENERATIONS, Run, run

STEPS = 30
SEEDS = 5


def main(*, seeds: int, steps: int, output_dir: Path) -> list[Run]:
    """All runs, each seed's from the same weights, and the report."""
    torch.set_num_threads(1)
    about = {"steps": steps, "learning_rate": LEARNING_RATE, "num_generations": NUM_GENERATIONS}
    runs = load_runs(output_dir, about)
    known = {(run.task, run.credit, run.seed) for run in runs}
    for seed in range(seeds):
        missing = [(task, credit) for task in TASKS for credit in CREDITS if (task, credit, seed) not in known]
        picker = random_picker(word_tokenizer(), seed=seed) if missing else None
        for task, credit in missing:
            runs.append(run(task, credit, seed, steps=steps, output_dir=output_dir, picker=picker))
            print(f"seed {seed}  {task:<9} {credit:<16} {runs[-1].final:.2f}  {runs[-1].cpu_s:.1f} s", flush=True)
            save_runs(runs, about, output_dir=output_dir)
    print(f"{write_report(runs, output_dir=output_dir)}\n{sum(run.cpu_s for run in runs):.0f} s of CPU time")
    return runs


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")  # TRL 1.16 uses the old name
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/credit"))
    options = parser.parse_args()
    main(seeds=2 if options.quick else SEEDS, steps=2 if options.quick else STEPS, output_dir=options.output_dir)
