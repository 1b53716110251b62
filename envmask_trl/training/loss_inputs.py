"""What the loss is given: which positions are trained, and nothing harmful anywhere else. Knows tensors: no trainer."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..masks import completion_mask_from_env_mask, select
from .micro_batches import IGNORED, forward_cut, padded_share

if TYPE_CHECKING:
    from .shared_prefix import TreeForward

Batch = dict[str, Any]

# Columns of [B, C] (or [B, 1]) and the value that says nothing in the loss.
NEUTRAL = {
    "old_per_token_logps": 0.0,
    "ref_per_token_logps": 0.0,
    "sampling_per_token_logps": 0.0,
    "importance_sampling_ratio": 1.0,
}
ROW_MEAN_LOSSES = ("grpo", "sapo", "luspo")  # the loss types that TRL averages over rows


def trained_positions(batch: Batch, eos_token_ids: Collection[int] | None) -> Tensor:
    """[B, C]: which completion tokens are trained, from the batch's `tool_mask` (TRL's name for the env_mask)."""
    prompt_ids, completion_ids = batch["prompt_ids"], batch["completion_ids"]
    completion_env_mask = batch["completion_mask"] * batch.get("tool_mask", 1)
    env_mask = torch.cat([torch.zeros_like(batch["prompt_mask"]), completion_env_mask], dim=1)  # [B, P+C]
    if eos_token_ids is None:
        mask = completion_mask_from_env_mask(env_mask)
    else:
        token_ids = torch.cat([prompt_ids, completion_ids], dim=1)
        mask = completion_mask_from_env_mask(env_mask, token_ids, eos_token_ids)
    return mask[:, prompt_ids.size(1) - 1 :]


def apply_mask(batch: Batch, trained: Tensor, row_scale: float) -> Batch:
    """The batch with `trained` as its only mask and neutral values wherever it is 0.

    Old, reference and sampling log-probs become those of the policy there (0, as its own are), so the ratio is exactly
    1 and the KL 0; an advantage becomes 0. A NaN or infinity that stood there is gone, one at a trained position stays.

    Args:
        batch: TRL's micro-batch.
        trained: [B, C], 1 = this token is trained.
        row_scale: weight of every row of a loss that averages over rows, see `annotate_windows`.
    """
    neutral = {name: select(batch[name], trained, value) for name, value in NEUTRAL.items() if name in batch}
    advantages = batch["advantages"]
    is_per_row = advantages.dim() == 1
    advantages = select(advantages.unsqueeze(1) if is_per_row else advantages, trained)
    if row_scale != 1.0:
        advantages = advantages * row_scale
    return {
        **batch,
        **neutral,
        "tool_mask": trained,
        "advantages": advantages.squeeze(1) if is_per_row else advantages,
    }


def window_counts(batches: list[Batch], masks: list[Tensor], window: int) -> Tensor:
    """[windows, 2]: trained tokens, and rows with at least one, of every `window` micro-batches (an optimizer step)."""
    counts = [torch.stack([mask.sum(), mask.any(dim=1).sum()]) for mask in masks]
    return torch.stack([torch.stack(counts[i : i + window]).sum(dim=0) for i in range(0, len(batches), window)])


def annotate_windows(batches: list[Batch], totals: Tensor, window: int, num_processes: int) -> None:
    """Write the denominators of one optimizer step into each of its micro-batches.

    TRL averages over all rows of a micro-batch and then over the micro-batches; a row without a trained token would
    vote 0. `row_scale` turns that into the mean over the rows that have one, over the whole step and all processes:
    `rows / rows_with_a_trained_token`, exactly 1 when every row has one. `num_items_in_batch`, which TRL counts over
    the generation batch, becomes the count of the step's own rows in the same unit.

    Args:
        batches: the micro-batches of one generation, in order.
        totals: [windows, 2] from `window_counts`, summed over processes.
        window: micro-batches of one optimizer step (at most all of them).
        num_processes: processes that share the step.
    """
    for start, (tokens, voting_rows) in zip(range(0, len(batches), window), totals, strict=True):
        members = batches[start : start + window]
        rows = sum(batch["completion_ids"].size(0) for batch in members) * num_processes
        for batch in members:
            batch["num_items_in_batch"] = tokens if len(batches) == window else tokens * (len(batches) / len(members))
            batch["row_scale"] = rows / voting_rows.item() if voting_rows > 0 else 1.0


class ScoredModel:
    """A model whose labels are kept only where `trained` is 1, so that no other position is scored.

    TRL's log-prob hook scores every completion token; behind this, environment tokens are seen as inputs and their
    own predictions never enter the loss. Rows are consumed in order, as the hook walks through its chunks.
    """

    def __init__(
        self,
        model: Any,
        trained: Tensor,
        forward: "TreeForward | None" = None,
        log_value: Callable[[str, float], None] | None = None,
    ):
        self.model = model
        self.forward = forward  # how the rows are forwarded; None is as they are
        self.trained = trained  # [B, C]
        self.log_value = log_value
        self.next_row = 0

    def __call__(self, *, labels: Tensor, **inputs: Any) -> Any:
        rows = self.trained[self.next_row : self.next_row + labels.size(0)]
        self.next_row += labels.size(0)
        foreign = torch.ones_like(labels, dtype=torch.bool)
        foreign[:, -rows.size(1) :] = rows == 0
        inputs["labels"] = labels.masked_fill(foreign, IGNORED)
        output = (self.forward or forward_cut)(self.model, **inputs)
        if self.log_value is not None:
            is_tree = self.forward is not None and self.forward.shares(inputs)
            self.log_value("env_mask/padded_share", 0.0 if is_tree else padded_share(inputs["attention_mask"]))
        return output
