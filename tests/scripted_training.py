"""One training step whose rollouts are known beforehand: row g of the global batch plays script g, on any machine.

row  turns of the model                     tokens that are trained
0    "row 0"                                few
1    look, "row 1"                          two turns
...
5    an answer longer than its budget       none: it is unfinished, and `mask_loss` leaves it out
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, Sample, ScriptedSampler

from .tiny import answer, call, tiny_model, tiny_tokenizer, user

ROWS = 8  # of the global batch: 4 questions with 2 rollouts each
CALLS = (0, 1, 0, 0, 3, 0, 2, 4)  # rounds of tools per row; two processes need 2 and 5 rounds
UNFINISHED = 5
MAX_COMPLETION_LENGTH = 250


class Room:
    """An environment with one tool, which tells the row that it was opened for."""

    made: list["Room"] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.opened = self.closed = 0
        Room.made.append(self)

    def reset(self, row: int, **others: Any) -> None:
        self.row = row
        self.opened += 1

    def look(self) -> str:
        """Look around."""
        return f"row {self.row}"

    def close(self) -> None:
        self.closed += 1


def texts_of_row(row: int) -> list[str]:
    """What the model writes in row `row`; two rows share a question."""
    if row == UNFINISHED:
        return [f"row {row // 2}" + "." * MAX_COMPLETION_LENGTH]
    return [call("look")] * CALLS[row] + [answer(f"row {row // 2}" + "!" * row)]


class PlaysRows:
    """A sampler that plays the scripts of this process's rows."""

    def __init__(self, trainer: EnvMaskGRPOTrainer):
        encode = trainer.processing_class
        local = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
        first = trainer.accelerator.process_index * local
        self.scripts = ScriptedSampler(
            [[encode(text)["input_ids"] for text in texts_of_row(row)] for row in range(first, first + local)],
            logprobs=False,
        )
        self.rounds = 0

    def sample(self, contexts: list, max_new_tokens: list[int]) -> list[Sample]:
        self.rounds += 1
        return self.scripts.sample(contexts, max_new_tokens)


def dataset(questions: int = ROWS // 2) -> Dataset:
    """Questions of different lengths."""
    rows = range(questions)
    return Dataset.from_list([{"prompt": user(f"row {row}" + " of" * (row % 4)), "row": row} for row in rows])


def length(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(len(ids) % 11) for ids in completion_ids]


def make_trainer(
    output_dir: Path, *, reward: Any = length, model: Any = None, questions: int = ROWS // 2, **options: Any
) -> EnvMaskGRPOTrainer:
    """A trainer over the global batch; by default it is one micro-batch of one process, and SGD shows the gradient."""
    tokenizer = tiny_tokenizer()
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": ROWS,
        "num_generations": 2,
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "unfinished_policy": "mask_loss",
        "shuffle_dataset": False,
        "optim": "sgd",
        "learning_rate": 1.0,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "max_steps": 1,
        "beta": 0.0,
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
    }
    arguments = {name: options.pop(name) for name in ("parser", "peft_config") if name in options}
    return EnvMaskGRPOTrainer(
        model or tiny_model(tokenizer),
        reward,
        EnvMaskGRPOConfig(output_dir=str(output_dir), **(defaults | options)),
        dataset(questions),
        processing_class=tokenizer,
        environment_factory=Room,
        **arguments,
    )


def end_process() -> None:
    """End one process of several, at once: on a busy machine torch sometimes aborts it while the interpreter ends."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def weights_after_the_step(output_dir: Path, **options: Any) -> dict[str, Tensor]:
    """The model's parameters after one optimizer step on the scripted batch."""
    trainer = make_trainer(output_dir, **options)
    trainer.sampler = PlaysRows(trainer)
    trainer.train()
    return {name: weight.detach() for name, weight in trainer.model.named_parameters()}
