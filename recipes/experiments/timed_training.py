"""One arm trained until its time is up, by TRL's trainer or ours with the same arguments. Knows both trainers.

The clock is `Waits`: seconds of the processor and of waiting for tools. Seconds on the wall are written down beside it.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from trl import GRPOConfig, GRPOTrainer

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer

from ..weather_calculator.reinforce import METRIC
from ..weather_calculator.tasks import correct_answer, needed_calls
from .records import Record, rounded
from .task import load_checkpoint, tools_of, training_day, training_rows
from .training import Plan, evaluate, shared_options
from .troubled_tools import Trouble, Waits, troubled

SIDES = ("trl", "ours")
LOGGED = {  # name in the record -> name in both trainers' logs
    "right_answers": METRIC,
    "reward": "reward",
    "grad_norm": "grad_norm",
    "calls": "tools/call_frequency",
    "failed_calls": "tools/failure_frequency",
    "unfinished": "completions/clipped_ratio",
}


@dataclass(frozen=True, slots=True)
class Race:
    """One arm: who trains, with which tools, for how long.

    Example:
        Race("ours", Trouble(latency_s=0.05), budget_s=60.0)
    """

    side: str
    trouble: Trouble = Trouble()
    max_completion_length: int | None = None  # None: the quickstart's
    tool_timeout_s: float | None = None  # ours alone has a deadline
    max_malformed_calls: int | None = None  # 1: such a call ends the rollout, as it does in TRL's loop
    budget_s: float = 60.0

    def options(self, seed: int) -> dict[str, Any]:
        """The trainer's arguments; the learning rate is constant, for nobody knows the number of steps beforehand."""
        own = {
            "max_completion_length": self.max_completion_length,
            "tool_timeout_s": self.tool_timeout_s,
            "max_malformed_calls": self.max_malformed_calls,
        }
        return (
            shared_options(seed)
            | {"lr_scheduler_type": "constant_with_warmup"}
            | {name: value for name, value in own.items() if value is not None}
        )


class Clock(TrainerCallback):
    """Notes the time at the end of each step, and ends training when it is up."""

    def __init__(self, waits: Waits, budget_s: float) -> None:
        self.waits, self.budget_s = waits, budget_s
        self.times: list[dict[str, float]] = []
        self.start = self.read()

    def read(self) -> dict[str, float]:
        return {"clock_s": self.waits.now_s(), "wall_s": time.perf_counter(), "cpu_s": time.process_time()}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = self.read()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        spent = {name: now - self.start[name] for name, now in self.read().items()}
        self.times.append(spent)
        control.should_training_stop |= spent["clock_s"] >= self.budget_s


def make_racer(
    race: Race, checkpoint: Path, *, seed: int, steps: int, folder: Path, waits: Waits, **options: Any
) -> GRPOTrainer:
    """TRL's trainer or ours; but for the class, and a deadline where the race has one, both calls are the same."""
    trainer_class, config_class = (
        (GRPOTrainer, GRPOConfig) if race.side == "trl" else (EnvMaskGRPOTrainer, EnvMaskGRPOConfig)
    )
    model, tokenizer = load_checkpoint(checkpoint)
    trainer = trainer_class(
        model,
        [correct_answer, needed_calls],  # type: ignore[list-item]  # TRL's type leaves no room for what is never None
        args=config_class(output_dir=str(folder), **(race.options(seed) | options)),
        train_dataset=Dataset.from_list(training_rows(seed, steps=steps)),
        processing_class=tokenizer,
        tools=troubled(tools_of("report", training_day(seed)), race.trouble, seed=seed, waits=waits),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def run_race(
    race: Race, checkpoint: Path, *, seed: int, steps: int, held_out: int, folder: Path, **options: Any
) -> Record:
    """Train until the time is up, or for `steps` steps; evaluate with tools that have no trouble.

    Whatever ends a training early is written down as what stopped it, with the curve so far: it is a finding.
    """
    set_seed(seed)
    torch.set_num_threads(1)
    waits = Waits(race.tool_timeout_s or float("inf"))
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    trainer = make_racer(race, checkpoint, seed=seed, steps=steps, folder=folder, waits=waits, **options)
    clock = Clock(waits, race.budget_s)
    trainer.add_callback(clock)
    stopped_by = ""
    try:
        trainer.train()
    except Exception as error:  # a model may write what no loop has foreseen
        stopped_by = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    logs = [entry for entry in trainer.state.log_history if METRIC in entry]
    times = {name: rounded([step[name] for step in clock.times]) for name in ("clock_s", "wall_s", "cpu_s")}
    return {
        "curves": times | {name: rounded([e[key] for e in logs if key in e]) for name, key in LOGGED.items()},
        "waited_s": round(waits.total_s, 2),
        "stopped_by": stopped_by,
        "held_out": evaluate(trainer, Plan(), seed=seed, each=held_out),
        "seconds": round(time.perf_counter() - started_s, 1),
        "cpu_seconds": round(time.process_time() - started_cpu_s, 1),
    }
