"""The log-prob forward of a micro-batch as a token tree: what rows have in common is computed once. Knows tensors.

A prompt of a group, a tool schema, a call that all members made stand once; a row ends with the last token that has to
be scored; and there is no padding, as all rows stand in one.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging

from ..rollout.transformers_sampler import evaluating
from ._trl import attention_of
from .micro_batches import IGNORED, PER_TOKEN, forward_cut
from .token_tree import Tree
from .tree_attention import TreeAttention

logger = logging.get_logger(__name__)
TAKEN = {"input_ids", "attention_mask", "labels", "fused_lm_head"}
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05  # of a log-prob in float32, and of a row's mean in half precision


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch as a tree of N columns.

    Example:
        packed = Packed.of(input_ids, attention_mask, labels)
    """

    ids: Tensor  # [1, N]
    positions: Tensor  # [1, N]
    labels: Tensor  # [1, N], the next token where it is scored
    attention: TreeAttention
    scored: tuple[Tensor, Tensor]  # [S] rows and positions of the micro-batch whose next token is scored
    places: Tensor  # [S], the column of each of them

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> "Packed":
        """From [B, T] rows, each without a gap; `labels` as in transformers, not shifted."""
        is_token, is_scored = attention_mask.bool().cpu().numpy(), (labels[:, 1:] != IGNORED).cpu().numpy()
        ids = input_ids.cpu().numpy()
        starts = is_token.argmax(axis=1)
        last_scored = np.where(is_scored.any(axis=1), is_scored.shape[1] - 1 - is_scored[:, ::-1].argmax(axis=1), 0)
        ends = np.maximum(starts, last_scored) + 2  # at least two tokens
        tree = Tree.of([row[start:end] for row, start, end in zip(ids, starts, ends, strict=True)])
        columns = np.zeros(ids.shape, dtype=np.int64)
        for row, (start, path) in enumerate(zip(starts, tree.paths, strict=True)):
            columns[row, start : start + len(path)] = path
        scored = np.nonzero(is_scored)
        places = columns[scored]
        next_ids = np.full(len(tree.ids), IGNORED)
        next_ids[places] = ids[scored[0], scored[1] + 1]
        tensor = lambda values: torch.from_numpy(values).to(input_ids.device)  # noqa: E731
        return cls(
            tensor(tree.ids).unsqueeze(0),
            tensor(tree.depths).unsqueeze(0),
            tensor(next_ids).unsqueeze(0),
            TreeAttention.of(tree, input_ids.device),
            (tensor(scored[0]), tensor(scored[1])),
            tensor(places),
        )

    def back(self, values: Tensor, shape: tuple[int, int]) -> Tensor:
        """From [1, N] to [B, T-1], 0 where nothing is scored."""
        return values.new_zeros(shape).index_put(self.scored, values.flatten()[self.places])


class TreeForward:
    """Forwards micro-batches as trees, once the first one has shown the same log-probs as forwarding its rows apart.

    Example:
        forward = TreeForward()
        forward(model, input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs  # [B, T-1]
    """

    def __init__(self) -> None:
        self.agrees: bool | None = None  # not known yet
        self.compared: set[int] = set()  # the models that were: the policy, a wrapper of it, the reference

    def shares(self, inputs: Collection[str]) -> bool:
        """Whether these inputs are forwarded as a tree; an auxiliary loss counts tokens, so it needs the rows apart."""
        return self.agrees is not False and set(inputs) == TAKEN

    def __call__(self, model: Any, **inputs: Any) -> Any:
        if not self.shares(inputs):
            return forward_cut(model, **inputs)
        if id(model) not in self.compared:
            self.compared.add(id(model))
            with torch.no_grad(), evaluating(model):  # dropout would differ, as it does between any two forwards
                apart, shared = (forward(model, **inputs).log_probs for forward in (forward_cut, forward_as_trees))
            self.agrees = same_logprobs(apart, shared, inputs["labels"][:, 1:] != IGNORED)
            return self(model, **inputs)
        return forward_as_trees(model, **inputs)


def same_logprobs(apart: Tensor, shared: Tensor, scored: Tensor) -> bool:
    """Whether two forwards gave the same numbers, as far as their precision goes; says so if not.

    In float32 no log-prob may differ by more than `TOLERANCE`. Half precision rounds single ones by more than a mistake
    would move others, so there the mean of each row counts.
    """
    difference = (apart - shared).abs().float()
    is_full = apart.dtype == torch.float32 and not torch.is_autocast_enabled(apart.device.type)
    if is_full and torch.get_float32_matmul_precision() == "highest":
        found, tolerance = difference.amax().item() if difference.numel() else 0.0, TOLERANCE
    else:
        found = (difference.sum(dim=1) / scored.sum(dim=1).clamp(min=1)).amax().item()
        tolerance = HALF_TOLERANCE
    if found <= tolerance or not apart.isfinite().all():
        return True
    logger.warning(
        f"shared_prefix is off: on the first micro-batch its log-probs differ by up to {found:.2g} from those of "
        f"the rows forwarded apart, more than {tolerance:.0e}"
    )
    return False


def forward_as_trees(model: Any, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **inputs: Any) -> Any:
    """As `model(..., labels=labels)` with TRL's fused LM head; its per-token fields are [B, T-1] again."""
    packed = Packed.of(input_ids, attention_mask, labels)
    output = model(
        input_ids=packed.ids,
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device),  # four axes: none is made
        position_ids=packed.positions,
        shift_labels=packed.labels,
        token_tree=packed.attention,
        **inputs,
    )
    shape = (labels.size(0), labels.size(1) - 1)
    for name in PER_TOKEN:
        if output.get(name) is not None:
            output[name] = packed.back(output[name], shape)
    return output


def tree_forward(model: PreTrainedModel, *, wanted: bool) -> TreeForward | None:
    """The forward of a trainer with this model; None, said aloud if it was wanted, forwards rows apart."""
    reason = why_not_shared(model) if wanted else None
    if reason:
        logger.warning(f"shared_prefix is off: {reason}")
    return TreeForward() if wanted and not reason else None


def why_not_shared(model: PreTrainedModel) -> str | None:
    """Why this model's rows cannot be forwarded as trees; None if they can."""
    name, attention = type(model).__name__, attention_of(model)
    if attention != "sdpa":
        return f"the attention implementation {attention} takes no tree, sdpa does"
    if not model.is_backend_compatible():
        return f"{name} does not call the attention functions of transformers"
    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers} - {DynamicLayer}
    if kinds:
        return f"{name} has layers whose cache is a {min(kind.__name__ for kind in kinds)}, which see not every token"
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "prompt learning puts tokens of its own before each row"
    return None
