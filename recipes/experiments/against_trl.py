"""The same training by `trl.GRPOTrainer(tools=...)` and by ours: success against seconds.

    python -m recipes.experiments.against_trl --seeds 0-2 --processes 8    # all arms; what is done is skipped
    python -m recipes.experiments.against_trl --arms trl-slow,ours-slow    # some of them
    python -m recipes.experiments.against_trl --draw                       # figure and table from the saved results
    python -m recipes.experiments.against_trl --quick --output runs/quick  # the same path in two steps

An arm takes `--budget` seconds (60) of training, and some more for its evaluation.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..benchmarks.timing import machine
from .race_report import draw_and_report
from .records import Record, load
from .runner import HELD_OUT, QUICK_HELD_OUT, QUICK_OPTIONS, Job, jobs_of, parser_of, run_all
from .timed_training import SIDES, Race, run_race
from .training import Plan
from .troubled_tools import Trouble

VARIANTS = {
    "plain": Race("ours"),
    "slow": Race("ours", Trouble(latency_s=0.05)),
    "unreliable": Race("ours", Trouble(failing=0.10, hanging=0.02)),
    "short": Race("ours", max_completion_length=100),  # a question of three calls needs about 160 tokens
}
ARMS = {f"{side}-{name}": replace(race, side=side) for name, race in VARIANTS.items() for side in SIDES}
ARMS["ours-plain-once"] = replace(VARIANTS["plain"], max_malformed_calls=1)
ARMS["ours-unreliable-deadline"] = replace(VARIANTS["unreliable"], tool_timeout_s=0.5)
QUICK_ARMS = ("trl-unreliable", "ours-unreliable")
BUDGET_S = 60.0
STEPS = 1_000  # more than fit into the time
SEEDS = 3
FILE = "against_trl.jsonl"


@dataclass(frozen=True, slots=True)
class RaceJob(Job):
    """One side, one variant, one seed."""

    budget_s: float = BUDGET_S

    def race(self) -> Race:
        return replace(ARMS[self.arm], budget_s=self.budget_s)

    def plan(self) -> Plan:
        return Plan()

    def settings(self) -> Record:
        return asdict(self.race())

    def found(self, checkpoint: Path, folder: Path) -> Record:
        on = machine()  # its load before the race
        raced = run_race(
            self.race(),
            checkpoint,
            seed=self.seed,
            steps=self.steps,
            held_out=QUICK_HELD_OUT if self.quick else HELD_OUT,
            folder=folder,
            **(QUICK_OPTIONS if self.quick else {}),
        )
        return raced | {"on": on}


def jobs(options: Namespace, budget_s: float) -> Sequence[Job]:
    found = jobs_of(RaceJob, options, arms=list(ARMS), quick_arms=QUICK_ARMS, seeds=SEEDS)
    return [replace(job, budget_s=budget_s) for job in found]


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, ARMS, seeds=SEEDS)
    parser.set_defaults(steps=STEPS)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of training of an arm")
    options = parser.parse_args(arguments)
    path = options.output / FILE
    if not options.draw:
        run_all(jobs(options, options.budget), path, processes=options.processes)
    draw_and_report(load(path), output=options.output, report=options.report)


if __name__ == "__main__":
    main()
