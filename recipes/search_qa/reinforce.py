"""GRPO on questions, the answers' exact match as reward. Knows the trainer and its settings: no world."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, ProgressLine, RolloutLimits, TagProtocol

from .evaluate import EM, F1, found_share

NUM_GENERATIONS = 8  # rollouts of one question
METRIC = "rewards/em_answer/mean"


def found_articles(trajectories: list, path: list[list[str]], **_: Any) -> list[float]:
    """The share of the needed articles that a search has shown, from 0.0 to 1.0: what a step towards an answer is."""
    return [found_share(trajectory, needed) for trajectory, needed in zip(trajectories, path, strict=True)]


def reinforce(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    *,
    protocol: TagProtocol,
    limits: RolloutLimits,
    questions_per_step: int,
    output_dir: Path,
    seed: int,
    peft_config: Any = None,
    **options: Any,
) -> tuple[Any, list[float]]:
    """Train once through `rows`, in their order; the trained model, and the exact match of each step's rollouts.

    Rows with a `path` are also paid for finding its articles. `options` are further fields of `EnvMaskGRPOConfig`.
    """
    knows_path = all(row.get("path") for row in rows)
    settings = {
        "learning_rate": 1e-3,
        "warmup_steps": 5,
        "max_grad_norm": 0.2,
        "adam_beta2": 0.98,
        "scale_rewards": "batch",
        "beta": 0.0,
        "gradient_checkpointing": False,
        "reward_weights": [1.0, 0.5 if knows_path else 0.2],
    }
    config = EnvMaskGRPOConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=NUM_GENERATIONS * questions_per_step,
        num_generations=NUM_GENERATIONS,
        num_train_epochs=1,
        shuffle_dataset=False,
        max_completion_length=limits.max_completion_length,
        max_turn_tokens=limits.max_turn_tokens,
        max_tool_calling_iterations=limits.max_tool_calling_iterations,
        max_malformed_calls=limits.max_malformed_calls,
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
        seed=seed,
        **{**settings, **options},
    )
    trainer = EnvMaskGRPOTrainer(
        model,
        [EM, found_articles if knows_path else F1],
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        protocol=protocol,
        peft_config=peft_config,
    )
    ProgressLine("GRPO", {"exact match": METRIC}).instead_of_the_log(trainer)
    trainer.train()
    return trainer.model, [entry[METRIC] for entry in trainer.state.log_history if METRIC in entry]
