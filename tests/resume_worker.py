"""A training run that can be killed: two optimizer steps use the rollouts of one generation. Started by test_resume.

python -m tests.resume_worker FOLDER GENERATION    stops for ever while generation GENERATION (from 0) is scored

optimizer step   0  1 | 2  3 | 4  5 | 6  7
generation       0    | 1    | 2    | 3         checkpoint-3 is saved inside generation 1
"""

import sys
import time
from pathlib import Path
from typing import Any

from envmask_trl import EnvMaskGRPOTrainer

from .scripted_training import length, make_trainer


class LogsRows:
    """A reward function that writes the dataset rows of each generation to a file, one generation a line."""

    __name__ = "logs_rows"

    def __init__(self, path: Path, *, stop_at: int | None = None):
        self.path, self.stop_at, self.generation = path, stop_at, 0

    def __call__(self, row: list[int], **columns: Any) -> list[float]:
        with self.path.open("a") as file:
            file.write(" ".join(map(str, row)) + "\n")
        if self.generation == self.stop_at:
            time.sleep(600)
        self.generation += 1
        return length(**columns)


def long_trainer(folder: Path, log: Path, *, stop_at: int | None = None, save_steps: int = 3) -> EnvMaskGRPOTrainer:
    return make_trainer(
        folder,
        reward=LogsRows(log, stop_at=stop_at),
        questions=16,
        shuffle_dataset=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        max_completion_length=8,
        unfinished_policy="train",
        optim="adamw_torch",
        learning_rate=1e-2,
        max_steps=8,
        save_strategy="steps",
        save_steps=save_steps,
    )


if __name__ == "__main__":
    folder, generation = Path(sys.argv[1]), int(sys.argv[2])
    long_trainer(folder / "run", folder / "killed.txt", stop_at=generation).train()
