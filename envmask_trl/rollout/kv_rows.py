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
        key_buffer, value_buffer = (s.new_empty(*s.shape[:-2], width + room, s.size(-1)) for s in (keys, values))
        self.hold(key_buffer, value_buffer, width)
        self.keys.copy_(keys)
        self.values.copy_(values)
        return self

    def hold(self, key_buffer: Tensor, value_buffer: Tensor, width: int) -> "BufferedLayer":
        """Hold the first `width` columns of these buffers, and write further ones into them."""
        self.key_buffer, self.value_buffer = key_buffer, value_buffer
        self.keys, self.values = key_buffer[:, :, :width], value_buffer[:, :, :width]
        self.is_initialized = True
        return self

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.keys.size(-2), self.keys.size(-2) + key_states.size(-2)
        if end > self.key_buffer.size(-2):
            self.fill(self.keys, self.values, room=end - start + max(ROOM, end // 2))
        self.hold(self.key_buffer, self.value_buffer, end)
        self.keys[:, :, start:] = key_states
        self.values[:, :, start:] = value_states
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
        return KVRows.gather([(self, rows)])

    @staticmethod
    def gather(parts: "Sequence[tuple[KVRows, Sequence[int]]]") -> "KVRows":
        """A copy of these rows of these caches, in order, as `take` makes it of one."""
        picked = [home.pick(rows) for home, rows in parts]
        width = max(columns.size(1) for _, columns, _ in picked)
        seen = torch.cat([pad(seen, (width - seen.size(1), 0)) for *_, seen in picked])

        def gathered(number: int, name: str) -> Tensor:
            sources = [getattr(home.layers[number], name) for home, _ in parts]
            _, heads, _, size = sources[0].shape
            buffer = sources[0].new_empty(seen.size(0), heads, width + ROOM, size)
            start = 0
            for states, (index, columns, _) in zip(sources, picked, strict=True):
                rows, lacking = buffer[start : start + len(index)], width - columns.size(1)
                rows[:, :, :lacking] = 0
                rows[:, :, lacking:width] = _gather(states, index, columns)
                start += len(index)
            return buffer

        numbers = range(len(parts[0][0].layers))
        layers = (BufferedLayer().hold(gathered(n, "keys"), gathered(n, "values"), width) for n in numbers)
        return KVRows(_cache(layers), seen)

    def pick(self, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The index of these rows, [R], the columns without their common holes, [R, C], and which hold a token."""
        index = torch.tensor(rows, dtype=torch.long, device=self.seen.device)
        seen = self.seen[index]
        width = int(seen.sum(dim=1).max())
        columns = seen.argsort(dim=1, stable=True)[:, seen.size(1) - width :]  # holes first, tokens in order after them
        return index, columns, seen.gather(1, columns)

    def part(self, live: Sequence[int]) -> "tuple[list[int], KVRows, KVRows]":
        """Bring these rows to the front, in place; which row is where now, they, and the others.

        Both are views: the live ones write into the same buffers until they need more room, and then get their own.
        """
        n, order = len(live), list(range(self.seen.size(0)))
        front = sorted(set(range(n)).difference(live))  # places where a row stands that stays behind
        back = [row for row in live if row >= n]
        for place, row in zip(front, back, strict=True):
            order[place], order[row] = row, place
        if back:
            into, out_of = (torch.tensor(rows, device=self.seen.device) for rows in (front + back, back + front))
            for states in (self.seen, *(states for layer in self.layers for states in (layer.keys, layer.values))):
                states[into] = states[out_of]
        return order, self.view(slice(n)), self.view(slice(n, None))

    def view(self, rows: slice) -> "KVRows":
        """Neighbouring rows, in the same buffers."""
        held = ((o.key_buffer[rows], o.value_buffer[rows], o.keys.size(-2)) for o in self.layers)
        return KVRows(_cache(BufferedLayer().hold(*each) for each in held), self.seen[rows])

    @property
    def rows_in_memory(self) -> int:
        """How many rows its buffers have room for, those included that it has parted from."""
        buffer = self.layers[0].key_buffer
        return buffer.untyped_storage().nbytes() // buffer[0].nbytes

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
