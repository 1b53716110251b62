"""One line of progress every few seconds. Knows a trainer's log, nothing else."""

import time

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

EVERY_S = 4.0


class ProgressLine(TrainerCallback):
    """Prints "GRPO   24/60  right answers 0.61  21 s" at most every few seconds, and at the last step."""

    def __init__(self, phase: str, *, metric: str, label: str) -> None:
        self.phase, self.metric, self.label = phase, metric, label
        self.started = self.printed = time.perf_counter()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict, **_: object
    ) -> None:
        now = time.perf_counter()
        is_last = state.global_step == state.max_steps
        if self.metric not in logs or (now - self.printed < EVERY_S and not is_last):
            return
        self.printed = now
        print(
            f"{self.phase:<5} {state.global_step:>4}/{state.max_steps}  {self.label} {float(logs[self.metric]):.2f}  "
            f"{now - self.started:.0f} s",
            flush=True,
        )
