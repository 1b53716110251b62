"""GRPO with the environment mask. Knows the trainer and its settings, nothing of the tasks."""

from collections.abc import Callable
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer

from .evaluate import MAX_CALLS, MAX_COMPLETION_LENGTH, MAX_MALFORMED_CALLS, MAX_TURN_TOKENS
from .progress import ProgressLine

NUM_GENERATIONS = 8  # rollouts of one question
PROMPTS_PER_STEP = 8
LEARNING_RATE = 6e-4  # at 2e-3 the policy collapses
WARMUP_STEPS = 5
METRIC = "rewards/correct_answer/mean"
CALLS_WEIGHT = 0.3  # of the share of needed calls, beside 1.0 for the right answer
MAX_GRAD_NORM = 0.2  # early steps of a group with one success are large


def reinforce(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    *,
    tools: list[Callable],
    rewards: list[Callable],
    output_dir: Path,
    seed: int,
) -> list[float]:
    """Train once through `rows`; the share of right answers in each step's rollouts."""
    config = EnvMaskGRPOConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=NUM_GENERATIONS * PROMPTS_PER_STEP,
        num_generations=NUM_GENERATIONS,
        num_train_epochs=1,
        learning_rate=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        reward_weights=[1.0, CALLS_WEIGHT],
        max_grad_norm=MAX_GRAD_NORM,
        max_completion_length=MAX_COMPLETION_LENGTH,
        max_tool_calling_iterations=MAX_CALLS,
        max_turn_tokens=MAX_TURN_TOKENS,
        max_malformed_calls=MAX_MALFORMED_CALLS,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        save_rollouts=True,
        report_to="none",
        seed=seed,
    )
    trainer = EnvMaskGRPOTrainer(
        model,
        rewards,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=tools,
        callbacks=[ProgressLine("GRPO", metric=METRIC, label="right answers")],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry[METRIC] for entry in trainer.state.log_history if METRIC in entry]
