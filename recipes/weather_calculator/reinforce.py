"""GRPO with the environment mask. Knows the trainer and its settings, nothing of the tasks."""

from collections.abc import Callable
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, ProgressLine

from .evaluate import MAX_CALLS, MAX_COMPLETION_LENGTH, MAX_MALFORMED_CALLS, MAX_TURN_TOKENS

NUM_GENERATIONS = 8  # rollouts of one question
LEARNING_RATE = 1e-3  # at 2e-3 the policy collapses
WARMUP_STEPS = 5
ADAM_BETA2 = 0.98  # the mean of 50 steps, not of 1,000: there are only 100
METRIC = "rewards/correct_answer/mean"
CALLS_WEIGHT = 1.0  # of the share of needed calls, beside 1.0 for the right answer
SCALE_REWARDS = "batch"  # by the deviation of the whole step: a group in which little differs has little to say
MAX_GRAD_NORM = 0.2  # early steps of a group with one success are large


def reinforce(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    *,
    tools: list[Callable],
    rewards: list[Callable],
    prompts_per_step: int,
    output_dir: Path,
    seed: int,
) -> list[float]:
    """Train once through `rows`, in their order; the share of right answers in each step's rollouts."""
    config = EnvMaskGRPOConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=NUM_GENERATIONS * prompts_per_step,
        num_generations=NUM_GENERATIONS,
        num_train_epochs=1,
        shuffle_dataset=False,
        learning_rate=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        adam_beta2=ADAM_BETA2,
        reward_weights=[1.0, CALLS_WEIGHT],
        scale_rewards=SCALE_REWARDS,
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
    )
    ProgressLine("GRPO", {"right answers": METRIC}).instead_of_the_log(trainer)
    trainer.train()
    return [entry[METRIC] for entry in trainer.state.log_history if METRIC in entry]
