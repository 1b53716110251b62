"""The log-prob forward of a micro-batch as token trees: what rows have in common is computed once. Knows tensors.

Padding goes too: a prompt of a group, a tool schema, a call that all members made stand in one column, each column sees
its own ancestors, and a row ends with the last token that has to be scored.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging

from .token_tree import Tree, split_into_lanes

logger = logging.get_logger(__name__)
IGNORED = -100
TAKEN = {"input_ids", "attention_mask", "labels", "fused_lm_head"}
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.1  # of a log-prob in float32, and in half precision
LINEAR_WIDTHS = 6  # a layer's matrices take 24 h^2 operations a token, attending to W columns 4 h W: equal at W = 6 h
PER_TOKEN = ("log_probs", "entropy")  # what is read of the model's output


@dataclass(frozen=True, slots=True)
class Lanes:
    """A micro-batch as trees.

    Example:
        lanes = Lanes.of(input_ids, attention_mask, labels, attention_at=384)
    """

    ids: Tensor  # [L, W]
    positions: Tensor  # [L, W]
    visible: Tensor  # [L, 1, W, W] bool
    labels: Tensor  # [L, W], the next token where it is scored
    scored: tuple[Tensor, Tensor]  # [S] rows and positions of the micro-batch whose next token is scored
    places: Tensor  # [S], where each of them is found in the flattened lanes

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, *, attention_at: int) -> "Lanes":
        """From [B, T] rows, each without a gap; `labels` as in transformers, not shifted."""
        is_token, is_scored = attention_mask.bool().cpu().numpy(), (labels[:, 1:] != IGNORED).cpu().numpy()
        ids = input_ids.cpu().numpy()
        starts = is_token.argmax(axis=1)
        ends = [max(start + 1, *np.nonzero(row)[0] + 1, 0) + 1 for start, row in zip(starts, is_scored, strict=True)]
        rows = [tuple(row[start:end]) for row, start, end in zip(ids, starts, ends, strict=True)]
        members = split_into_lanes(rows, attention_at=attention_at)
        trees = [Tree.of([rows[row] for row in lane]) for lane in members]
        width = max(len(tree.ids) for tree in trees)
        visible = np.zeros((len(trees), 1, width, width), dtype=bool)
        visible[:, 0, range(width), range(width)] = True  # padding sees itself, so that no row of scores is empty
        lanes, positions = np.zeros((2, len(trees), width), dtype=np.int64)
        place = np.zeros(ids.shape, dtype=np.int64)
        for lane, (tree, lane_rows) in enumerate(zip(trees, members, strict=True)):
            size = len(tree.ids)
            lanes[lane, :size], positions[lane, :size] = tree.ids, tree.depths
            visible[lane, 0, :size, :size] = tree.visible()
            for row, path in zip(lane_rows, tree.paths, strict=True):
                place[row, starts[row] : starts[row] + len(path)] = lane * width + path
        scored = np.nonzero(is_scored)
        places = place[scored]
        lane_labels = np.full(len(trees) * width, IGNORED)
        lane_labels[places] = ids[scored[0], scored[1] + 1]
        on = input_ids.device
        return cls(
            torch.from_numpy(lanes).to(on),
            torch.from_numpy(positions).to(on),
            torch.from_numpy(visible).to(on),
            torch.from_numpy(lane_labels).view(lanes.shape).to(on),
            (torch.from_numpy(scored[0]).to(on), torch.from_numpy(scored[1]).to(on)),
            torch.from_numpy(places).to(on),
        )

    def back(self, values: Tensor, shape: tuple[int, int]) -> Tensor:
        """From [L, W] to [B, T-1], 0 where nothing is scored."""
        return values.new_zeros(shape).index_put(self.scored, values.flatten()[self.places])


class TreeForward:
    """Forwards micro-batches as trees, once the first one has shown the same log-probs as forwarding its rows apart.

    Example:
        forward = TreeForward()
        forward(model, input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs  # [B, T-1]
    """

    def __init__(self) -> None:
        self.agrees: bool | None = None  # not known yet

    def __call__(self, model: Any, **inputs: Any) -> Any:
        if self.agrees is False or set(inputs) != TAKEN:  # an auxiliary loss counts tokens: it needs the rows apart
            return model(**inputs)
        if self.agrees is None:
            with torch.no_grad():
                self.agrees = same_logprobs(model(**inputs).log_probs, forward_as_trees(model, **inputs).log_probs)
            return self(model, **inputs)
        return forward_as_trees(model, **inputs)


def same_logprobs(apart: Tensor, shared: Tensor) -> bool:
    """Whether two forwards gave the same numbers, as far as their precision goes; says so if not."""
    tolerance = TOLERANCE if apart.dtype == torch.float32 and not torch.is_autocast_enabled() else HALF_TOLERANCE
    difference = (apart - shared).abs().max().item() if apart.numel() else 0.0
    if difference <= tolerance or not apart.isfinite().all():
        return True
    logger.warning(
        f"shared_prefix is off: on the first micro-batch its log-probs differ by up to {difference:.2g} from those of "
        f"the rows forwarded apart, more than {tolerance:.0e}"
    )
    return False


def forward_as_trees(model: Any, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **inputs: Any) -> Any:
    """As `model(..., labels=labels)` with TRL's fused LM head; its per-token fields are [B, T-1] again."""
    config = getattr(model, "module", model).config.get_text_config()
    lanes = Lanes.of(input_ids, attention_mask, labels, attention_at=LINEAR_WIDTHS * config.hidden_size)
    mask = lanes.visible
    if config._attn_implementation == "eager":
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)
    output = model(
        input_ids=lanes.ids, attention_mask=mask, position_ids=lanes.positions, shift_labels=lanes.labels, **inputs
    )
    shape = (labels.size(0), labels.size(1) - 1)
    for name in PER_TOKEN:
        if output.get(name) is not None:
            output[name] = lanes.back(output[name], shape)
    return output


def tree_forward(model: PreTrainedModel, *, wanted: bool) -> TreeForward | None:
    """The forward of a trainer with this model; None, said aloud if it was wanted, forwards rows apart."""
    reason = why_not_shared(model) if wanted else None
    if reason:
        logger.warning(f"shared_prefix is off: {reason}")
    return TreeForward() if wanted and not reason else None


def why_not_shared(model: PreTrainedModel) -> str | None:
    """Why this model's rows cannot be forwarded as trees; None if they can."""
    name, attention = type(model).__name__, model.config.get_text_config()._attn_implementation
    if attention not in ("sdpa", "eager"):
        return f"the attention implementation {attention} takes no mask of its own"
    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers} - {DynamicLayer}
    if kinds:
        return f"{name} has layers whose cache is a {min(kind.__name__ for kind in kinds)}, which see not every token"
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "prompt learning puts tokens of its own before each row"
    return None
