"""What faults of real systems do to the curve, and which tool names each.

    python -m recipes.experiments.fault_atlas --seeds 0-3 --processes 8    # all faults and the clean run
    python -m recipes.experiments.fault_atlas --arms clean,inverted        # some of them
    python -m recipes.experiments.fault_atlas --draw                       # figure and table from the saved results
    python -m recipes.experiments.fault_atlas --quick --output runs/quick  # the same path in two steps

An arm takes as long as one of the ablation, and a while for what the tools say of its first step.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import set_seed

from ..weather_calculator.reinforce import NUM_GENERATIONS
from .atlas_report import CLEAN, draw_and_report
from .faults import FAULTS
from .findings import findings_of
from .records import Record, load
from .runner import QUICK_GROUP, Job, jobs_of, parser_of, run_all
from .task import training_rows
from .training import Plan, make_trainer

SEEDS = 4
FILE = "fault_atlas.jsonl"
EXAMINED_QUESTIONS = 4  # of the first step's eight: half of its rollouts show the tools what there is to see


@dataclass(frozen=True, slots=True)
class AtlasJob(Job):
    """One fault on one seed: what the tools say of its first step, then its training."""

    def plan(self) -> Plan:
        return FAULTS[self.arm].plan if self.arm != CLEAN else Plan()

    def settings(self) -> Record:
        return {"fault": FAULTS[self.arm].what if self.arm != CLEAN else "none"}

    def further(self, checkpoint: Path, folder: Path) -> Record:
        set_seed(self.seed)
        torch.set_num_threads(1)
        group = QUICK_GROUP if self.quick else NUM_GENERATIONS
        rows = training_rows(self.seed, steps=1)[:EXAMINED_QUESTIONS]
        trainer = make_trainer(
            self.plan(),
            checkpoint,
            seed=self.seed,
            rows=rows,
            folder=folder,
            per_device_train_batch_size=group * len(rows),
            num_generations=group,
            max_steps=1,
            audit_first_step=True,
        )
        return {"findings": findings_of(trainer, rows)}


def main(arguments: list[str] | None = None) -> None:
    arms = [CLEAN, *FAULTS]
    options = parser_of(__doc__, arms, seeds=SEEDS).parse_args(arguments)
    path = options.output / FILE
    if not options.draw:
        jobs = jobs_of(AtlasJob, options, arms=arms, quick_arms=(CLEAN, "inverted"), seeds=SEEDS)
        run_all(jobs, path, processes=options.processes)
    draw_and_report(load(path), output=options.output, report=options.report)


if __name__ == "__main__":
    main()
