"""One run: a task, a mode of credit, a seed. Knows the trainer and its settings."""

import copy
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from transformers import PrinterCallback, Qwen3ForCausalLM

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer

from .policy import random_picker, read_pick, word_tokenizer
from .tasks import NAMED, STEPS, Picking, questions

Credit = Literal["outcome", "turn_discounted", "turn", "gigpo"]
CREDITS: tuple[Credit, ...] = get_args(Credit)
NUM_GENERATIONS = 16
LEARNING_RATE = 5e-3  # at 1e-2 some runs forget how a pick is written
LAST = 5  # training steps whose rollouts are counted


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed.

    Example:
        Run("waste", "turn", seed=0, success=[0.2, 0.3], cpu_s=4.0)
    """

    task: str
    credit: Credit
    seed: int
    success: list[float]  # the share of a step's rollouts that succeeded, step by step
    cpu_s: float

    @property
    def final(self) -> float:
        """Of the last steps' rollouts."""
        last = self.success[-LAST:]
        return sum(last) / len(last)


def succeeded(environments: list[Picking], **columns: Any) -> list[float]:
    """What is measured; its weight is 0, it teaches nothing."""
    return [float(environment.succeeded) for environment in environments]


def run(
    task: str, credit: Credit, seed: int, *, steps: int, output_dir: Path, picker: Qwen3ForCausalLM | None = None
) -> Run:
    """Train a random picker for so many steps; all modes of a seed start with the same weights."""
    start = time.process_time()
    tokenizer = word_tokenizer()
    model = copy.deepcopy(picker) if picker is not None else random_picker(tokenizer, seed=seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'environment_factory'")
        trainer = EnvMaskGRPOTrainer(
            model,
            succeeded,
            args=make_config(credit, seed=seed, steps=steps, output_dir=output_dir),
            train_dataset=questions(task, rounds=steps),
            processing_class=tokenizer,
            environment_factory=Picking,
            parser=read_pick,
        )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    metric = "rewards/succeeded/mean"
    success = [entry[metric] for entry in trainer.state.log_history if metric in entry]
    return Run(task, credit, seed, success, time.process_time() - start)


def make_config(credit: Credit, *, seed: int, steps: int, output_dir: Path) -> EnvMaskGRPOConfig:
    """The same for all modes but for `credit`: one optimizer step a generation, all rollouts in it."""
    return EnvMaskGRPOConfig(
        output_dir=str(output_dir),
        credit=credit,
        per_device_train_batch_size=NUM_GENERATIONS * len(NAMED),
        num_generations=NUM_GENERATIONS,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        reward_weights=[0.0],
        max_completion_length=128,  # a result needs room for the mark of a shortened one
        max_turn_tokens=2,
        min_answer_tokens=2,
        max_tool_calling_iterations=STEPS,
        shuffle_dataset=False,
        shared_prefix=False,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        save_rollouts=False,
        report_to="none",
        seed=seed,
    )
