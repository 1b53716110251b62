"""One arm: GRPO from a checkpoint, and what is written down about it. Knows the trainer, not what the arms are for."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from trl import GRPOTrainer

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, audit, load_rollouts

from ..weather_calculator.evaluate import MAX_CALLS, MAX_COMPLETION_LENGTH, MAX_MALFORMED_CALLS, MAX_TURN_TOKENS, play
from ..weather_calculator.reinforce import (
    ADAM_BETA2,
    CALLS_WEIGHT,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    METRIC,
    NUM_GENERATIONS,
    SCALE_REWARDS,
    WARMUP_STEPS,
)
from ..weather_calculator.report import success_by_calls
from ..weather_calculator.tasks import correct_answer, needed_calls
from .records import Record, rounded
from .task import QUESTIONS_PER_STEP, held_out_rows, load_checkpoint, test_day, tools_of, training_day, training_rows

CURVES = {  # name in the record -> name in the trainer's log
    "right_answers": METRIC,
    "reward": "reward",
    "grad_norm": "grad_norm",
    "plays_environment": "env_mask/plays_environment_share",
    "env_token_share": "env_mask/env_token_share",
    "calls": "tools/call_frequency",
    "unfinished": "completions/clipped_ratio",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What an arm does differently from the quickstart.

    Example:
        Plan(observation="report", options={"mask_env_tokens": False, "learning_rate": 1e-3})
    """

    observation: str = "report"
    options: dict[str, Any] = field(default_factory=dict)  # of EnvMaskGRPOConfig
    trainer_class: type[EnvMaskGRPOTrainer] = EnvMaskGRPOTrainer
    rewards: tuple[Callable[..., list[float]], ...] = (correct_answer, needed_calls)
    chat_template: Callable[[str], str] | None = None  # what becomes of the tokenizer's template


OWN_OPTIONS = {"max_turn_tokens": MAX_TURN_TOKENS, "max_malformed_calls": MAX_MALFORMED_CALLS}


def shared_options(seed: int) -> dict[str, Any]:
    """The quickstart's settings, as far as TRL's own trainer has them too."""
    return {
        "per_device_train_batch_size": NUM_GENERATIONS * sum(QUESTIONS_PER_STEP.values()),
        "num_generations": NUM_GENERATIONS,
        "num_train_epochs": 1,
        "shuffle_dataset": False,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": WARMUP_STEPS,
        "adam_beta2": ADAM_BETA2,
        "reward_weights": [1.0, CALLS_WEIGHT],
        "scale_rewards": SCALE_REWARDS,
        "max_grad_norm": MAX_GRAD_NORM,
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "max_tool_calling_iterations": MAX_CALLS,
        "beta": 0.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "disable_tqdm": True,
        "save_strategy": "no",
        "report_to": "none",
        "seed": seed,
    }


def make_trainer(
    plan: Plan, checkpoint: Path, *, seed: int, rows: Sequence[dict], folder: Path, **options: Any
) -> EnvMaskGRPOTrainer:
    """The quickstart's trainer with the plan's differences."""
    model, tokenizer = load_checkpoint(checkpoint)
    if plan.chat_template is not None:
        tokenizer.chat_template = plan.chat_template(tokenizer.chat_template)
    defaults = shared_options(seed) | OWN_OPTIONS
    trainer = plan.trainer_class(
        model,
        list(plan.rewards),
        args=EnvMaskGRPOConfig(output_dir=str(folder), **(defaults | plan.options | options)),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        tools=tools_of(plan.observation, training_day(seed)),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def run_arm(
    plan: Plan,
    checkpoint: Path,
    *,
    seed: int,
    steps: int,
    held_out: int,
    folder: Path,
    audited_steps: Collection[int] = (),
    audited_rows: int = 64,
    **options: Any,
) -> Record:
    """Train for `steps` steps (0: evaluate the checkpoint), evaluate, and return what is worth keeping.

    Args:
        held_out: questions of each number of calls, of a day that no training has seen.
        folder: for the rollouts; what is in it is not needed afterwards.
        audited_steps: optimizer steps, from 1, after which mask on and off are compared on their rollouts.
        options: of the trainer's config, in place of the plan's.
    """
    set_seed(seed)
    torch.set_num_threads(1)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    rows = training_rows(seed, steps=max(steps, 1))
    trainer = make_trainer(plan, checkpoint, seed=seed, rows=rows, folder=folder, **options)
    warnings: list[tuple[int, str]] = []
    trainer.step_log.symptoms.say = lambda sentence: warnings.append((trainer.state.global_step + 1, sentence))
    paired = PairedAtSteps(folder, audited_steps, audited_rows)
    trainer.add_callback(paired)
    stopped_by = ""
    if steps:
        try:
            trainer.train()
        except (ValueError, RuntimeError) as error:  # NaN in weights or probabilities: the arm has ended, not failed
            stopped_by = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    logs = [entry for entry in trainer.state.log_history if METRIC in entry]
    return {
        "curves": {name: rounded([entry[key] for entry in logs if key in entry]) for name, key in CURVES.items()},
        "paired": paired.reports,
        "warnings": warnings,
        "stopped_by": stopped_by,
        "held_out": {} if stopped_by else evaluate(trainer, plan, seed=seed, each=held_out),
        "seconds": round(time.perf_counter() - started_s, 1),
        "cpu_seconds": round(time.process_time() - started_cpu_s, 1),
    }


def evaluate(trainer: GRPOTrainer, plan: Plan, *, seed: int, each: int) -> dict[str, dict[str, float]]:
    """Held-out success by calls: {"sampled": {"0": 0.97, ...}, "greedy": {...}}."""
    model, tokenizer = trainer.model, trainer.processing_class
    assert isinstance(model, PreTrainedModel) and isinstance(tokenizer, PreTrainedTokenizerBase)
    rows, tools = held_out_rows(seed, each=each), tools_of(plan.observation, test_day(seed))
    set_seed(seed)  # every arm of a seed draws the same random numbers
    results = {}
    for decoding in ("sampled", "greedy"):
        played, _ = play(model, tokenizer, rows, tools=tools, greedy=decoding == "greedy")
        results[decoding] = {calls: round(share, 4) for calls, share in success_by_calls(played).items()}
    return results


class PairedAtSteps(TrainerCallback):
    """Compares mask on and off on some steps' rollouts, with the weights right after the step."""

    def __init__(self, folder: Path, steps: Collection[int], rows: int):
        self.folder, self.steps, self.rows = folder, steps, rows
        self.reports: list[dict[str, float]] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: object
    ) -> None:
        if state.global_step not in self.steps:
            return
        rows = load_rollouts(self.folder / "rollouts" / f"step-{state.global_step - 1:06d}-process-0.parquet")
        authored = [{name: value for name, value in row.items() if name != "loss_mask"} for row in rows]
        paired = audit(authored, model=model, max_rows=self.rows).paired
        assert paired is not None
        names = ("tokens", "loss", "gradient", "norm_with_mask", "norm_without_mask", "cosine")
        values = rounded([getattr(paired, name) for name in names])
        self.reports.append({"step": state.global_step, **dict(zip(names, values, strict=True))})
