"""One process of a step with credit by turn, whose one group lies in all processes. Started by test_credit_distributed.

python -m tests.credit_worker FOLDER    the first process writes FOLDER/<credit>.pt, the weights after the step
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from .scripted_training import ROWS, end_process, length, weights_after_the_step

CREDITS = ("turn", "gigpo")


class Lengths:
    """Scores each turn by its number and by what the rollout says, so that rollouts and turns differ."""

    __name__ = "lengths"

    def __call__(self, completion_ids: list, **columns: Any) -> list[float]:
        return length(completion_ids)

    def turn_rewards(self, trajectories: list, **columns: Any) -> list[list[float] | None]:
        return [[float((len(t.completion_ids) + 3 * k) % 7) for k in range(t.num_turns)] for t in trajectories]


def step(credit: str, output_dir: Path, *, processes: int) -> dict[str, torch.Tensor]:
    return weights_after_the_step(
        output_dir,
        credit=credit,
        reward=Lengths(),
        num_generations=ROWS,
        per_device_train_batch_size=ROWS // processes,
        scale_rewards="none" if credit == "gigpo" else "group",
    )


def main(folder: Path) -> None:
    for credit in CREDITS:
        weights = step(credit, folder / credit, processes=int(os.environ.get("WORLD_SIZE", 1)))
        if int(os.environ.get("RANK", 0)) == 0:
            torch.save(weights, folder / f"{credit}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_process()
