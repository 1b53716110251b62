"""Do rows that are packed together see each other? Asked of the model itself, with the batch that TRL would build."""

from typing import Any

import torch
from transformers import PreTrainedModel
from trl import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

ROW = 6  # tokens of each probe row
SEEN = 1e-5  # of the largest logit: what another neighbour may change
ALONE = {torch.float32: 1e-3, torch.float64: 1e-3}  # of the largest logit: packed against alone; 0.1 in half precision


def check_packing(model: PreTrainedModel, config: SFTConfig) -> None:
    """Raise if `config` packs rows and this model, with its attention implementation, lets them see each other.

    Two short rows are packed and forwarded, then once more with another first row: the second row's logits must not
    change, and must be those of the row alone. Nothing is packed, nothing is asked.

    Example:
        check_packing(model, SFTConfig(packing=True, max_length=2048))

    Raises:
        ValueError: rows see each other; the sentence says what to set instead.
    """
    if not (config.packing or config.padding_free):
        return
    if config.packing and config.packing_strategy == "wrapped":
        raise ValueError(
            "packing_strategy is 'wrapped', which joins rows and cuts them anywhere; set packing_strategy='bfd'"
        )
    seen, moved = neighbour_effects(model)
    remedy = "set packing=False and padding_free=False, or load the model with another attn_implementation"
    if seen > SEEN:
        raise ValueError(
            f"{type(model).__name__} as it was loaded lets packed rows see each other: another "
            f"neighbour changes a row's logits by {seen:.2g} of the largest; {remedy}"
        )
    if moved > ALONE.get(model.dtype, 0.1):
        raise ValueError(
            f"{type(model).__name__} as it was loaded reads a packed row otherwise than alone: its "
            f"logits differ by {moved:.2g} of the largest; {remedy}"
        )


@torch.no_grad()
def neighbour_effects(model: PreTrainedModel) -> tuple[float, float]:
    """How far a row's logits change with another row before it, and from the row alone, of the largest logit."""
    embeddings: Any = model.get_input_embeddings()
    rows = [[(start + 7 * step) % embeddings.num_embeddings for step in range(ROW)] for start in (11, 101, 53)]
    was_training = model.training
    model.eval()
    try:
        behind_one, behind_other, alone = (
            logits(model, batch)[-ROW:] for batch in ([rows[0], rows[2]], [rows[1], rows[2]], [rows[2]])
        )
    finally:
        model.train(was_training)
    seen, moved = ((behind_one - other).abs().max() / alone.abs().max() for other in (behind_other, alone))
    return seen.item(), moved.item()


def logits(model: PreTrainedModel, rows: list[list[int]]) -> torch.Tensor:
    """[T, V], of the rows packed into one as TRL's collator packs them."""
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    batch = collator([{"input_ids": row, "seq_lengths": [len(row)]} for row in rows])
    batch = {key: value.to(model.device) if torch.is_tensor(value) else value for key, value in batch.items()}
    del batch["labels"]
    return model(**batch, use_cache=False).logits[0].float()
