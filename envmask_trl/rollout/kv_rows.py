"""Keys and values of several rows of tokens, which can be taken apart and joined. Knows tensors: no ids, no sampling.

A row that stopped while others went on has holes: columns that hold a key of a padding token, which nothing may see.

columns   0 1 2 3 4 5
row 0     x x x x . .     stopped two tokens before row 1
row 1     . x x x x x     began one token later
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

ROOM = 32  # columns that a buffer has to spare when it is made; it then grows by half


class BufferedLayer(DynamicLayer):
    """A layer of a transformers cache in a buffer with room to grow: a new token copies nothing of the old ones."""

    keys: Tensor  # [R, heads, W, head size], a view into the buffer
    values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.fill(key_states[:, :, :0], value_states[:, :, :0])

    def fill(self, keys: Tensor, values: Tensor, *, room: int = ROOM) -> "BufferedLayer":
        """Hold these keys and values, with room for further columns."""
        width = keys.size(-2)
        self.key_buffer, self.value_buffer = (
            states.new_empty(*states.shape[:-2], width + room, states.size(-1)) for states in (keys, values)
        )
        self.keys, self.values = self.key_buffer[:, :, :width], self.value_buffer[:, :, :width]
        self.keys.copy_(keys)
        self.values.copy_(values)
        self.is_initialized = True
        return self

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.keys.size(-2), self.keys.size(-2) + key_states.size(-2)
        if end > self.key_buffer.size(-2):
            self.fill(self.keys, self.values, room=end - start + max(ROOM, end // 2))
        self.key_buffer[:, :, start:end] = key_states
        self.value_buffer[:, :, start:end] = value_states
        self.keys, self.values = self.key_buffer[:, :, :end], self.value_buffer[:, :, :end]
        return self.keys, self.values


class KVRows:
    """The cache of R rows and which of its W columns hold a token of each row.

    Example:
        rows = KVRows.empty(len(prompts), device=model.device)
        model(ids, past_key_values=rows.cache, **rows.extend(is_token))

    Args:
        cache: a transformers cache with `BufferedLayer`s, or an empty one that will get them.
        seen: [R, W] of 0 and 1.
    """

    def __init__(self, cache: DynamicCache, seen: Tensor):
        self.cache, self.seen = cache, seen

    @classmethod
    def empty(cls, num_rows: int, *, device: torch.device) -> "KVRows":
        cache = DynamicCache()
        cache.layer_class_to_replicate = BufferedLayer
        return cls(cache, torch.zeros(num_rows, 0, dtype=torch.long, device=device))

    def extend(self, is_token: Tensor) -> dict[str, Tensor]:
        """Announce new columns, [R, N] of 0 and 1; what the model's forward has to be told about them."""
        first = self.seen.sum(dim=1, keepdim=True)
        self.seen = torch.cat([self.seen, is_token], dim=1)
        positions = first + is_token.cumsum(dim=1) - 1
        return {"attention_mask": self.seen, "position_ids": positions.clamp(min=0)}

    def lengths(self) -> list[int]:
        """The tokens of each row."""
        return self.seen.sum(dim=1).tolist()

    def take(self, rows: Sequence[int]) -> "KVRows":
        """A copy of some rows, repeated ones included, without their common holes: left-padded to the longest."""
        index = torch.tensor(rows, dtype=torch.long, device=self.seen.device)
        seen = self.seen[index]
        width = int(seen.sum(dim=1).max())
        columns = seen.argsort(dim=1, stable=True)[:, seen.size(1) - width :]  # holes first, tokens in order after them
        return KVRows(
            _cache(
                BufferedLayer().fill(_gather(layer.keys, index, columns), _gather(layer.values, index, columns))
                for layer in self.layers
            ),
            seen.gather(1, columns),
        )

    @staticmethod
    def join(parts: "Sequence[KVRows]") -> "KVRows":
        """All rows of all parts, in order, left-padded to the widest."""
        if len(parts) == 1:
            return parts[0]
        width = max(part.seen.size(1) for part in parts)
        lacking = [width - part.seen.size(1) for part in parts]
        return KVRows(
            _cache(
                BufferedLayer().fill(
                    torch.cat([pad(layer.keys, (0, 0, n, 0)) for layer, n in zip(same, lacking, strict=True)]),
                    torch.cat([pad(layer.values, (0, 0, n, 0)) for layer, n in zip(same, lacking, strict=True)]),
                )
                for same in zip(*(part.layers for part in parts), strict=True)
            ),
            torch.cat([pad(part.seen, (n, 0)) for part, n in zip(parts, lacking, strict=True)]),
        )

    @property
    def layers(self) -> list[BufferedLayer]:
        return cast(list[BufferedLayer], self.cache.layers)


def _gather(states: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """states[rows[r], :, columns[r, c]]: from [R, heads, W, size] to [len(rows), heads, C, size]."""
    return states.transpose(1, 2)[rows.unsqueeze(1), columns].transpose(1, 2)


def _cache(layers: Any) -> DynamicCache:
    cache = DynamicCache()
    cache.layers = list(layers)
    return cache
