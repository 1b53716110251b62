"""One line of progress every few seconds. Knows a trainer's log, nothing else."""

import time
from collections.abc import Mapping
from typing import Any

from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

LOGGED = {  # what a line shows of the trainer's log, by the name that it has there
    "loss": "loss",
    "reward": "reward",
    "calls": "tools/call_frequency",
    "of the environment": "env_mask/env_token_share",
}


class ProgressLine(TrainerCallback):
    """Prints a line of the log at most every few seconds, and at the last step; trackers still get every key.

    Example:
        ProgressLine("GRPO", {"right answers": "rewards/correct_answer/mean"}).instead_of_the_log(trainer)
        # GRPO    24/60  right answers 0.61  21 s

    Args:
        phase: the line's first word.
        shown: names of the log by what they are called in the line; those that a log lacks are left out.
        every_s: least seconds from line to line.
    """

    def __init__(self, phase: str, shown: Mapping[str, str] = LOGGED, *, every_s: float = 4.0) -> None:
        self.phase, self.shown, self.every_s = phase, shown, every_s
        self.started = self.printed = time.perf_counter()

    def instead_of_the_log(self, trainer: Trainer) -> None:
        """Print this line in the terminal, and neither a progress bar nor all keys of each step."""
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(self)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        now, logs = time.perf_counter(), logs or {}
        is_due = now - self.printed >= self.every_s or state.global_step == state.max_steps
        values = [f"{name} {short(float(logs[key]))}" for name, key in self.shown.items() if key in logs]
        if not (values and is_due and state.is_world_process_zero):
            return
        self.printed = now
        step = f"{state.global_step:>4}/{state.max_steps}"
        print(f"{self.phase:<5} {step}  {'  '.join(values)}  {now - self.started:.0f} s", flush=True)


def short(value: float) -> str:
    """Two decimals, or two digits of a small number: 0.61, 0.0031."""
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"
