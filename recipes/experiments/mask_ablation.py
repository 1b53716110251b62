"""The environment mask on and off, on the quickstart's task, from one SFT checkpoint a seed.

    python -m recipes.experiments.mask_ablation --seeds 0-7 --processes 8   # all arms; what is done is skipped
    python -m recipes.experiments.mask_ablation --arms on,off --seeds 0-3   # some of them
    python -m recipes.experiments.mask_ablation --draw                      # figure and tables from saved results
    python -m recipes.experiments.mask_ablation --quick --output /tmp/quick # the same path in two steps

An arm of 60 steps takes about 100 s of one core, a checkpoint about 90 s.
"""

import argparse
import multiprocessing
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from ..weather_calculator.reinforce import LEARNING_RATE
from .mask_report import draw_and_report
from .records import Record, append, circumstances, finished, load
from .task import OBSERVATIONS, make_checkpoint
from .training import Plan, run_arm

RESULTS = Path(__file__).parent / "results"
FACTORS = {"": 1.0, "-third": 1 / 3, "-triple": 3.0}  # of the learning rate
LOSSES = {"": "dapo", "-grpo": "grpo", "-cispo": "cispo"}  # mean over tokens, mean over rows, clipped weights
CISPO_EPSILON_HIGH = 5.0  # TRL's advice; its default of 0.2 is that of the other losses
STEPS, QUICK_STEPS = 60, 2
HELD_OUT, QUICK_HELD_OUT = 64, 2  # questions of each number of calls


@dataclass(frozen=True, slots=True)
class Arm:
    """One line of the table.

    Example:
        Arm(mask=False, loss="grpo", learning_rate=LEARNING_RATE / 3).name -> "off-grpo-third"
    """

    mask: bool
    loss: str = "dapo"
    learning_rate: float = LEARNING_RATE
    observation: str = "report"

    def plan(self) -> Plan:
        options = {"mask_env_tokens": self.mask, "loss_type": self.loss, "learning_rate": self.learning_rate}
        if self.loss == "cispo":
            options["epsilon_high"] = CISPO_EPSILON_HIGH
        return Plan(self.observation, options)


def all_arms() -> dict[str, Arm | None]:
    """By name; None for the checkpoints themselves, "sft-<observation>"."""
    arms: dict[str, Arm | None] = {"on": Arm(True)}
    arms |= {f"off{rate}": Arm(False, learning_rate=LEARNING_RATE * by) for rate, by in FACTORS.items()}
    for ending in ("-grpo", "-cispo"):
        arms[f"on{ending}"] = Arm(True, LOSSES[ending])
        rates = FACTORS if ending == "-grpo" else {"": 1.0}
        arms |= {f"off{ending}{rate}": Arm(False, LOSSES[ending], LEARNING_RATE * by) for rate, by in rates.items()}
    for observation in ("number", "long"):
        arms |= {
            f"{'on' if mask else 'off'}-{observation}": Arm(mask, observation=observation) for mask in (True, False)
        }
    return {f"sft-{observation}": None for observation in OBSERVATIONS} | arms


ARMS = all_arms()


@dataclass(frozen=True, slots=True)
class Job:
    """One arm of one seed, and where it finds what it needs; a process can be given one."""

    arm: str
    seed: int
    checkpoints: Path
    given: str = ""  # pattern of ready checkpoints with the long reports, such as "runs/q{seed}/sft"
    steps: int = STEPS
    quick: bool = False

    @property
    def observation(self) -> str:
        arm = ARMS[self.arm]
        return arm.observation if arm is not None else self.arm.removeprefix("sft-")

    def checkpoint(self) -> Path:
        """The SFT checkpoint to start from, made if there is none."""
        if self.given and self.observation == "report":
            return Path(self.given.format(seed=self.seed))
        folder = self.checkpoints / f"{self.observation}-{self.seed}"
        return make_checkpoint(self.observation, self.seed, folder, quick=self.quick)

    def run(self) -> Record:
        """The arm's record."""
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")  # TRL 1.16's name
        arm = ARMS[self.arm]
        steps = self.steps if arm is not None else 0
        with tempfile.TemporaryDirectory() as folder:
            found = run_arm(
                arm.plan() if arm is not None else Plan(self.observation),
                self.checkpoint(),
                seed=self.seed,
                steps=steps,
                held_out=QUICK_HELD_OUT if self.quick else HELD_OUT,
                folder=Path(folder),
                audited_steps={1, steps // 2, steps},
            )
        settings = asdict(arm) if arm is not None else {"observation": self.observation}
        head = {"arm": self.arm, "seed": self.seed, "steps": steps, "settings": settings}
        return head | found | {"versions": circumstances()}


def run_all(jobs: Iterable[Job], output: Path, *, processes: int) -> None:
    """Run what is not finished, and append each record as soon as it is there."""
    path = output / "mask_ablation.jsonl"
    done = finished(path)
    todo = [job for job in jobs if (job.arm, job.seed) not in done]
    for number, record in enumerate(records_of(todo, processes), 1):
        append(path, record)
        sampled = record["held_out"].get("sampled", {})
        print(
            f"{number}/{len(todo)}  {record['arm']:<16} seed {record['seed']}  held-out success, sampled: "
            f"{' '.join(f'{share:.2f}' for share in sampled.values()) or record['stopped_by']}  "
            f"{record['cpu_seconds']:.0f} s of a core",
            flush=True,
        )


def records_of(jobs: list[Job], processes: int) -> Iterator[Record]:
    """As they are finished; with one process, in this one."""
    if processes == 1:
        yield from (job.run() for job in jobs)
        return
    checkpoints = {(job.observation, job.seed): job for job in jobs}  # each made once, before the arms that share it
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for made in as_completed([pool.submit(job.checkpoint) for job in checkpoints.values()]):
            made.result()
        for future in as_completed([pool.submit(job.run) for job in jobs]):
            yield future.result()


def parse_seeds(text: str) -> list[int]:
    """ "0-3,7" -> [0, 1, 2, 3, 7]"""
    parts = [part.split("-") for part in text.split(",")]
    return [seed for part in parts for seed in range(int(part[0]), int(part[-1]) + 1)]


def parse_arms(text: str) -> list[str]:
    """Names of arms, in the order in which they are given."""
    names = list(ARMS) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in ARMS]:
        raise argparse.ArgumentTypeError(f"there is no arm {unknown[0]!r}; expected any of {', '.join(ARMS)}")
    return names


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=parse_arms, default=list(ARMS), help="names, with commas; default: all")
    parser.add_argument("--seeds", type=parse_seeds, default=list(range(8)), help='such as "0-7" or "0,2"')
    parser.add_argument("--steps", type=int, default=STEPS, help="GRPO steps of an arm")
    parser.add_argument("--processes", type=int, default=1, help="arms at a time, each on one core")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of mask_ablation.jsonl, .png and .md")
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/ablation"), help="folder of SFT checkpoints")
    parser.add_argument("--from", dest="given", default="", help='ready checkpoints, such as "runs/q{seed}/sft"')
    parser.add_argument("--draw", action="store_true", help="train nothing: figure and tables from the saved results")
    parser.add_argument("--report", type=Path, help="a Markdown file whose generated section is written anew")
    parser.add_argument("--quick", action="store_true", help="two steps of each arm, for tests; learns nothing")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.checkpoints = QUICK_STEPS, options.output / "checkpoints"
    if not options.draw:
        jobs = [
            Job(arm, seed, options.checkpoints, options.given, options.steps, options.quick)
            for seed in options.seeds
            for arm in options.arms
        ]
        run_all(jobs, options.output, processes=options.processes)
    draw_and_report(load(options.output / "mask_ablation.jsonl"), output=options.output, report=options.report)


if __name__ == "__main__":
    main()
