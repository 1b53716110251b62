"""Which rows of an optimizer step stand in which micro-batch, and what of their padding is forwarded. Knows tensors.

TRL shuffles a generation's rows and pads them all to its longest. Inside one optimizer step their order changes
nothing but rounding, so rows that begin alike can share a micro-batch, and columns that only others need are cut.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

Batch = dict[str, Any]
SPLIT_BY_TRL = ("bnpo",)  # the loss types that divide by a micro-batch's own tokens


def depends_on_split(trainer: Any) -> bool:
    """Whether the step's loss depends on which of its rows share a micro-batch: by a count or a mean over one."""
    args = trainer.args
    return (
        args.loss_type in SPLIT_BY_TRL
        or args.top_entropy_quantile < 1.0
        or args.entropy_coef != 0.0
        or args.use_adaptive_entropy
        or trainer.aux_loss_enabled
    )


def arrange(batches: list[Batch], window: int, *, as_trees: bool) -> None:
    """Move rows, in place, between the micro-batches of an optimizer step; each keeps as many as it had.

    Args:
        batches: the micro-batches of one generation, in order, padded to the same widths.
        window: micro-batches of one optimizer step.
        as_trees: rows that begin alike come together; otherwise rows of like length.
    """
    for start in range(0, len(batches), window):
        members = batches[start : start + window]
        if len(members) == 1:
            continue
        keys = [key for batch in members for key in row_keys(batch, as_trees=as_trees)]
        order = torch.tensor(sorted(range(len(keys)), key=keys.__getitem__))
        columns = {
            name: torch.cat([batch[name] for batch in members])
            for name, value in members[0].items()
            if isinstance(value, Tensor) and value.dim() > 0  # the others are of the whole batch
        }
        sizes = [len(batch["completion_ids"]) for batch in members]
        for batch, rows in zip(members, order.split(sizes), strict=True):
            batch.update({name: values[rows.to(values.device)] for name, values in columns.items()})


def row_keys(batch: Batch, *, as_trees: bool) -> list[Any]:
    """What rows are sorted by: their tokens, or how many they are."""
    is_token = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1).bool().cpu()
    if not as_trees:
        return is_token.sum(dim=1).tolist()
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1).cpu()
    return [row[kept].numpy().astype(">i8").tobytes() for row, kept in zip(ids, is_token, strict=True)]


def forward_cut(model: Any, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **inputs: Any) -> Any:
    """As `model(..., labels=labels)` with TRL's fused LM head, without columns that no row has a token in."""
    used = attention_mask.any(dim=0).nonzero()
    first, end = int(used[0]), int(used[-1]) + 1
    cut = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
    output = model(**{name: values[:, first:end] for name, values in cut.items()}, **inputs)
    for name in ("log_probs", "entropy"):
        if output.get(name) is not None:
            output[name] = pad(output[name], (first, labels.size(1) - end))
    return output


def padded_share(attention_mask: Tensor) -> float:
    """Padding that `forward_cut` forwards, as a share of all that it does."""
    used = attention_mask[:, attention_mask.any(dim=0)]
    return 1 - used.float().mean().item()
