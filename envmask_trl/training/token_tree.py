"""Rows of ids as a tree in which a common beginning stands once, laid out in lanes. Knows ids: no model, no loss.

rows          1 2 3 4 5     tree   1 2 (3 4) (3 6)      columns   1 2 3 4 3 6
              1 2 3 6 7

The last token of a row is only predicted, so it has no column; and a column predicts one token, so the token before a
fork has a column on each branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of some rows: its columns, in an order in which ancestors come first.

    Example:
        Tree.of([(1, 2, 3, 4, 5), (1, 2, 3, 6, 7)]).ids -> [1, 2, 3, 4, 3, 6]
    """

    ids: np.ndarray  # [N]
    depths: np.ndarray  # [N], the position of each token in its rows
    first_rows: np.ndarray  # [N], of the rows that share a column, in the tree's order, the first
    last_rows: np.ndarray  # [N], and the last
    paths: list[np.ndarray]  # for each row, in the caller's order, the columns of its tokens but the last

    @classmethod
    def of(cls, rows: Rows) -> "Tree":
        """The tree of rows with at least two tokens each."""
        order = sorted(range(len(rows)), key=lambda row: tuple(rows[row]))
        sorted_rows = [np.asarray(rows[row]) for row in order]
        paths: list[np.ndarray] = []
        ids: list[np.ndarray] = []
        size = 0
        for place, row in enumerate(sorted_rows):
            shared = common_length(sorted_rows[place - 1], row) - 1 if place else 0
            shared = max(0, shared)
            own = row[shared:-1]
            before = paths[-1][:shared] if place else np.empty(0, dtype=np.int64)
            paths.append(np.concatenate([before, np.arange(size, size + len(own))]))
            ids.append(own)
            size += len(own)
        depths, first_rows, last_rows = np.zeros((3, size), dtype=np.int64)
        for place in reversed(range(len(paths))):
            first_rows[paths[place]] = place
        for place, path in enumerate(paths):
            last_rows[path] = place
            depths[path] = np.arange(len(path))
        by_row = [path for _, path in sorted(zip(order, paths, strict=True), key=lambda pair: pair[0])]
        return cls(np.concatenate(ids), depths, first_rows, last_rows, by_row)

    def visible(self) -> np.ndarray:
        """[N, N]: whether the column of the first index sees that of the second, which are itself and its ancestors."""
        columns = np.arange(len(self.ids))
        return (
            (columns[None, :] <= columns[:, None])
            & (self.first_rows[None, :] <= self.first_rows[:, None])
            & (self.last_rows[None, :] >= self.last_rows[:, None])
        )


def split_into_lanes(rows: Rows, *, attention_at: int) -> list[list[int]]:
    """Which rows share a lane: neighbours in the tree's order, so that what is forwarded costs least.

    Lanes are padded to the widest. A wide lane shares more and pays attention over all of its columns.

    Args:
        attention_at: the width at which attending costs as much as all else, in tokens.
    """
    order = sorted(range(len(rows)), key=lambda row: tuple(rows[row]))
    sorted_rows = [np.asarray(rows[row]) for row in order]
    lengths = [len(row) - 1 for row in sorted_rows]
    shared = [0, *(max(0, common_length(a, b) - 1) for a, b in pairwise(sorted_rows))]
    whole = sum(length - common for length, common in zip(lengths, shared, strict=True))
    best: tuple[float, list[list[int]]] | None = None
    widest = max(lengths)
    while True:
        lanes, width = fill_lanes(lengths, shared, widest)
        cost = len(lanes) * width * (1 + width / attention_at)
        if best is None or cost < best[0]:
            best = cost, lanes
        if widest >= whole:
            return [[order[place] for place in lane] for lane in best[1]]
        widest *= 2


def fill_lanes(lengths: list[int], shared: list[int], widest: int) -> tuple[list[list[int]], int]:
    """Places in order, as many to a lane as fit into `widest` columns; and the width that came of it."""
    lanes: list[list[int]] = []
    widths: list[int] = []
    for place, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if lanes and widths[-1] + length - common <= widest:
            lanes[-1].append(place)
            widths[-1] += length - common
        else:
            lanes.append([place])
            widths.append(length)
    return lanes, max(widths)


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens both begin with."""
    shorter = min(len(a), len(b))
    different = np.nonzero(a[:shorter] != b[:shorter])[0]
    return int(different[0]) if len(different) else shorter
