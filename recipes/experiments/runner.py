"""Runs arms of an experiment, one or several at a time; keeps each record as soon as it is there. Knows no plots."""

import argparse
import multiprocessing
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .records import Record, append, circumstances, finished
from .task import make_checkpoint
from .training import Plan, run_arm

RESULTS = Path(__file__).parent / "results"
STEPS, QUICK_STEPS = 60, 2
HELD_OUT, QUICK_HELD_OUT = 64, 2  # questions of each number of calls
AUDITED_ROWS, QUICK_AUDITED_ROWS = 32, 8  # of a step's 64 rollouts: half of its groups; two of the quick one's 16
QUICK_GROUP = 4
QUICK_OPTIONS = {
    "per_device_train_batch_size": 4 * QUICK_GROUP,
    "num_generations": QUICK_GROUP,
    "max_steps": QUICK_STEPS,
}
AnyJob = TypeVar("AnyJob", bound="Job")


@dataclass(frozen=True, slots=True)
class Job(ABC):
    """One arm of one seed, and where it finds what it needs; small enough to be given to another process."""

    arm: str
    seed: int
    checkpoints: Path
    given: str = ""  # pattern of ready checkpoints with the quickstart's reports, such as "runs/q{seed}/sft"
    steps: int = STEPS
    quick: bool = False

    @abstractmethod
    def plan(self) -> Plan:
        """What the arm does differently from the quickstart."""

    @abstractmethod
    def settings(self) -> Record:
        """What the arm is, for the record."""

    def further(self, checkpoint: Path, folder: Path) -> Record:
        """What else is found out about the arm, before it is trained."""
        return {}

    def checkpoint(self) -> Path:
        """The SFT checkpoint to start from, made if there is none."""
        observation = self.plan().observation
        if self.given and observation == "report":
            return Path(self.given.format(seed=self.seed))
        return make_checkpoint(
            observation, self.seed, self.checkpoints / f"{observation}-{self.seed}", quick=self.quick
        )

    def run(self) -> Record:
        """The arm's record."""
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")  # TRL 1.16's name
        checkpoint = self.checkpoint()
        head = {"arm": self.arm, "seed": self.seed, "steps": self.steps, "settings": self.settings()}
        with tempfile.TemporaryDirectory() as folder:
            found = self.found(checkpoint, Path(folder))
        return head | found | {"versions": circumstances()}

    def found(self, checkpoint: Path, folder: Path) -> Record:
        """What training and evaluation show, and what else there is to find out."""
        further = self.further(checkpoint, folder / "further")
        trained = run_arm(
            self.plan(),
            checkpoint,
            seed=self.seed,
            steps=self.steps,
            held_out=QUICK_HELD_OUT if self.quick else HELD_OUT,
            folder=folder / "run",
            audited_steps={1, self.steps // 2, self.steps},
            audited_rows=QUICK_AUDITED_ROWS if self.quick else AUDITED_ROWS,
            **(QUICK_OPTIONS if self.quick else {}),
        )
        return trained | further


def run_all(jobs: Iterable[Job], path: Path, *, processes: int) -> None:
    """Run what is not finished, and append each record to `path`."""
    done = finished(path)
    todo = [job for job in jobs if (job.arm, job.seed) not in done]
    for number, record in enumerate(records_of(todo, processes), 1):
        append(path, record)
        sampled = record["held_out"].get("sampled", {})
        shares = " ".join(f"{share:.2f}" for share in sampled.values()) or record["stopped_by"]
        print(
            f"{number}/{len(todo)}  {record['arm']:<16} seed {record['seed']}  held-out success, sampled: {shares}  "
            f"{record['cpu_seconds']:.0f} s of a core",
            flush=True,
        )


def records_of(jobs: Sequence[Job], processes: int) -> Iterator[Record]:
    """As they are finished; with one process, in this one."""
    if processes == 1:
        yield from (job.run() for job in jobs)
        return
    sharing = {(job.plan().observation, job.seed): job for job in jobs}  # a checkpoint is made before arms share it
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for made in as_completed([pool.submit(job.checkpoint) for job in sharing.values()]):
            made.result()
        for future in as_completed([pool.submit(job.run) for job in jobs]):
            yield future.result()


def parse_seeds(text: str) -> list[int]:
    """ "0-3,7" -> [0, 1, 2, 3, 7]"""
    parts = [part.split("-") for part in text.split(",")]
    return [seed for part in parts for seed in range(int(part[0]), int(part[-1]) + 1)]


def parser_of(description: str | None, arms: Iterable[str], *, seeds: int) -> argparse.ArgumentParser:
    """The options that the experiments share."""
    known = list(arms)

    def parse_arms(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no arm {unknown[0]!r}; expected any of {', '.join(known)}")
        return names

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=parse_arms, default=None, help=f"with commas, of {', '.join(known)}")
    parser.add_argument("--seeds", type=parse_seeds, default=None, help=f'such as "0-{seeds - 1}" or "0,2"')
    parser.add_argument("--steps", type=int, default=STEPS, help="GRPO steps of an arm")
    parser.add_argument("--processes", type=int, default=1, help="arms at a time, each on one core")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the records, the figure and the tables")
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/ablation"), help="folder of SFT checkpoints")
    parser.add_argument("--from", dest="given", default="", help='ready checkpoints, such as "runs/q{seed}/sft"')
    parser.add_argument("--draw", action="store_true", help="train nothing: figure and tables from the saved results")
    parser.add_argument("--report", type=Path, help="a Markdown file whose generated section is written anew")
    parser.add_argument("--quick", action="store_true", help="two steps of a few arms and one seed; learns nothing")
    return parser


def jobs_of(
    kind: type[AnyJob], options: argparse.Namespace, *, arms: Sequence[str], quick_arms: Sequence[str], seeds: int
) -> list[AnyJob]:
    """The jobs that the options ask for, seed by seed, so that pairs are finished together.

    Args:
        arms: all arms, which are run where the options name none; with --quick only `quick_arms`.
        seeds: how many are run where the options name none; with --quick one.
    """
    steps = QUICK_STEPS if options.quick else options.steps
    checkpoints = options.output / "checkpoints" if options.quick else options.checkpoints
    return [
        kind(arm, seed, checkpoints, options.given, steps, options.quick)
        for seed in options.seeds or range(1 if options.quick else seeds)
        for arm in options.arms or (quick_arms if options.quick else arms)
    ]
