"""Which rows of an optimizer step stand in which micro-batch, and what of their padding is forwarded. Knows tensors.

TRL shuffles a generation's rows and pads them all to its longest. Inside one optimizer step their order changes
nothing but rounding, so rows that begin alike can share a micro-batch, and columns that only others need are cut.
"""

from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]
IGNORED = -100
PER_TOKEN = ("log_probs", "entropy")  # what is read of the model's output
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
    """As `model(..., labels=labels)` with TRL's fused LM head; each row moved to the left, padding cut or behind it.

    What stands behind a row cannot reach it. Padding before it does where a model counts positions by column, carries a
    state from token to token or attends within a window: there a row's numbers would depend on the rows beside it.

        _ _ P P c c _        P P c c . .
        P P P P c c c   ->   P P P P c c c
    """
    columns, is_inside = flush_left(attention_mask)
    output = model(
        input_ids=input_ids.gather(1, columns),
        attention_mask=attention_mask.gather(1, columns) * is_inside,
        labels=labels.gather(1, columns).masked_fill(~is_inside, IGNORED),
        **inputs,
    )
    for name in PER_TOKEN:
        if output.get(name) is not None:
            own = output[name][:, -(columns.size(1) - 1) :]  # prompt learning puts columns of its own before a row
            output[name] = moved_back(own, columns[:, :1], labels.size(1) - 1)
    return output


def flush_left(attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """For rows without gaps: which of T columns stands in each of the W that are left, [B, W], and whether one does."""
    starts = attention_mask.argmax(dim=1, keepdim=True)
    width = max(2, int(attention_mask.sum(dim=1).max()))
    columns = starts + torch.arange(width, device=starts.device)
    is_inside = columns < attention_mask.size(1)
    return columns.where(is_inside, 0), is_inside


def moved_back(values: Tensor, starts: Tensor, width: int) -> Tensor:
    """From [B, W] to [B, width], each row beginning at its start again, 0 elsewhere."""
    places = torch.arange(width, device=values.device) - starts
    is_inside = (places >= 0) & (places < values.size(1))
    return values.gather(1, places.where(is_inside, 0)).where(is_inside, 0)


def padded_share(attention_mask: Tensor) -> float:
    """Padding that `forward_cut` forwards, as a share of all that it does."""
    lengths = attention_mask.sum(dim=1)
    return 1 - (lengths.sum() / (lengths.max() * len(lengths))).item()
