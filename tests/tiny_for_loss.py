"""A model small enough to check by hand, trainers over it, and hand-made micro-batches.

Ids: 1-9 prompt, 10-18 model, 19 eos (and pad), 20-29 environment.
"""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig

VOCABULARY = 32
EOS = 19
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Id n is the word `wn`; pad and eos are both 19."""
    backend = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=f"w{EOS}", pad_token=f"w{EOS}", unk_token="w0")


def small_model(seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=32,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
    )


def uniform_model() -> Qwen3ForCausalLM:
    """Every token has log-prob -ln(32)."""
    model = small_model()
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


def trainer_of(cls: type, config: type[GRPOConfig], output_dir: Any, model: Any = None, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    path = Path(output_dir, "model")  # a reference model is loaded again from where the policy came from
    (model or small_model()).save_pretrained(path)
    trainer = cls(
        Qwen3ForCausalLM.from_pretrained(path),
        lambda completions, **_: [0.0] * len(completions),
        config(output_dir=str(output_dir), **{**defaults, **options}),
        Dataset.from_dict({"prompt": ["w1 w2", "w3"]}),
        processing_class=word_tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.train()
    return trainer


def micro_batch(rows: list[tuple[list[int], list[int], list[int]]], advantages: list, **columns: Any) -> dict[str, Any]:
    """TRL's micro-batch of (prompt, completion, env_mask) rows: prompts padded left, completions right."""
    prompt_width = max(len(prompt) for prompt, _, _ in rows)
    width = max(len(completion) for _, completion, _ in rows)

    def pad(values: list[list[int]], size: int, fill: int, left: bool = False) -> Tensor:
        return torch.tensor([[fill] * (size - len(v)) + v if left else v + [fill] * (size - len(v)) for v in values])

    prompts, completions, masks = (list(column) for column in zip(*rows, strict=True))
    batch = {
        "prompt_ids": pad(prompts, prompt_width, EOS, left=True),
        "prompt_mask": pad([[1] * len(p) for p in prompts], prompt_width, 0, left=True),
        "completion_ids": pad(completions, width, EOS),
        "completion_mask": pad([[1] * len(c) for c in completions], width, 0),
        "tool_mask": pad(masks, width, 1),  # TRL pads it with ones
        "advantages": torch.tensor(advantages),
        **columns,
    }
    batch["num_items_in_batch"] = (batch["completion_mask"] * batch["tool_mask"]).sum()
    return batch


def loss_and_gradients(trainer: Any, batch: dict[str, Any]) -> tuple[float, dict[str, Tensor]]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


def masked_loss_and_gradients(trainer: Any, batch: dict[str, Any]) -> tuple[float, dict[str, Tensor]]:
    """As in a training step of our trainer: the denominators are counted first."""
    trainer.prepare_windows([batch])
    return loss_and_gradients(trainer, batch)
