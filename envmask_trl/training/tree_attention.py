"""Attention over a token tree: each branch asks its own ancestors, whatever else stands in the tree. Knows tensors.

columns     0 1 2 3 4 5      queries  0 1 2 3    keys  0 1 2 3        a branch that shares nothing: causal
branches    0 1 2 3          queries  4 5        keys  0 1 4 5        one that shares two columns
            0 1 . . 4 5

All other layers see each token once, in one row without padding. transformers' attention functions get all that a
model's forward is given by name, and so does this one, also when a checkpointed layer is computed again. It needs no
more pairs of query and key than the rows apart do, so a tree is never dearer than its rows. Importing this file puts it
under the name "sdpa" into transformers' table; a forward without a tree gets what stood there before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

from .token_tree import Branch, Tree, bundles

plain_attention: Any = AttentionInterface()["sdpa"]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Branches that attend together, padded to the largest: R of them with n own columns and T on their paths.

    Example:
        Bundle(queries=tensor([[4, 5]]), keys=tensor([[0, 1, 4, 5]]), visible=tensor([[1, 1, 1, 0], [1, 1, 1, 1]]))
    """

    queries: Tensor  # [R, n] columns; those of padding are 0
    keys: Tensor  # [R, T] columns, likewise
    visible: Tensor | None  # [1 or R, 1, n, T] bool; None is causal, of as many queries as keys

    @classmethod
    def of(cls, branches: Sequence[Branch], device: torch.device) -> "Bundle":
        queries = np.zeros((len(branches), max(branch.own for branch in branches)), dtype=np.int64)
        keys = np.zeros((len(branches), max(len(branch.path) for branch in branches)), dtype=np.int64)
        for row, branch in enumerate(branches):
            queries[row, : branch.own] = branch.path[branch.shared :]
            keys[row, : len(branch.path)] = branch.path
        shared = np.unique([branch.shared for branch in branches])
        if len(shared) > 1:
            shared = np.array([branch.shared for branch in branches])
        last_seen = shared[:, None, None] + np.arange(queries.shape[1])[:, None]  # padded keys lie behind it
        visible = np.arange(keys.shape[1]) <= last_seen
        return cls(
            torch.from_numpy(queries).to(device),
            torch.from_numpy(keys).to(device),
            torch.from_numpy(visible).unsqueeze(1).to(device) if shared.any() else None,
        )


@dataclass(frozen=True, slots=True)
class TreeAttention:
    """Who sees whom in a token tree.

    Example:
        model(input_ids, position_ids=positions, token_tree=TreeAttention.of(tree, input_ids.device))
    """

    bundles: list[Bundle]
    places: Tensor  # [N], where each column's output is found among those of all bundles
    masks: dict[torch.dtype, list[Tensor | None]] = field(default_factory=dict)  # made once for all layers

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> "TreeAttention":
        places = np.empty(len(tree.ids), dtype=np.int64)
        start, made = 0, []
        for bundle in bundles(tree.branches):
            made.append(Bundle.of(bundle, device))
            n = made[-1].queries.size(1)
            for branch in bundle:
                places[branch.path[branch.shared :]] = np.arange(start, start + branch.own)
                start += n
        return cls(made, torch.from_numpy(places).to(device))

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """As a transformers attention function: from [1, heads, N, size] to [1, N, heads, size]."""
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # [N, heads, size]
        queries = taken(query, [bundle.queries for bundle in self.bundles])
        keys, values = (taken(states, [bundle.keys for bundle in self.bundles]) for states in (key, value))
        outputs = []
        for inputs in zip(queries, keys, values, self.float_masks(query.dtype), strict=True):
            output, _ = plain_attention(module, *inputs, **options)
            outputs.append(output.flatten(0, 1))  # [R * n, heads, size]
        return torch.cat(outputs).index_select(0, self.places).unsqueeze(0)

    def float_masks(self, dtype: torch.dtype) -> list[Tensor | None]:
        """To be added to the scores, so that no layer has to keep one of its own."""
        if dtype not in self.masks:
            self.masks[dtype] = [
                None
                if seen is None
                else torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
                for seen in (bundle.visible for bundle in self.bundles)
            ]
        return self.masks[dtype]


def taken(states: Tensor, columns: Sequence[Tensor]) -> list[Tensor]:
    """From [N, heads, size] to [R, heads, n, size] for each of the [R, n] columns.

    Selected at once, because the gradient of each selection is a tensor as large as `states`.
    """
    selected = states.index_select(0, torch.cat([places.flatten() for places in columns]))
    parts = selected.split([places.numel() for places in columns])
    return [part.unflatten(0, places.shape).transpose(1, 2) for part, places in zip(parts, columns, strict=True)]


def attention_with_trees(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    token_tree: TreeAttention | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' sdpa attention, or the tree's if the model's forward was given one."""
    if token_tree is None:
        output: tuple[Tensor, Tensor | None] = plain_attention(module, query, key, value, attention_mask, **options)
        return output
    return token_tree.attend(module, query, key, value, **options), None


AttentionInterface.register("sdpa", attention_with_trees)
