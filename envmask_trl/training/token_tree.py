"""Rows of ids as a tree in which a common beginning stands once. Knows ids: no model, no loss.

rows          1 2 3 4 5     tree   1 2 (3 4) (3 6)      columns   1 2 3 4 3 6
              1 2 3 6 7

The last token of a row is only predicted, so it has no column; and a column predicts one token, so the token before a
fork has a column on each branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WASTE = 1.1  # padded over real pairs of query and key
NEGLIGIBLE = 2**15  # pairs that cost no more than a call does
LARGEST_MASK = 2**24  # pairs that a mask of their own per branch may have

Rows = Sequence[Sequence[int] | np.ndarray]


@dataclass(frozen=True, slots=True)
class Branch:
    """What one row adds to the tree: the end of its path, consecutive columns that no row before it has.

    Example:
        Branch(path=np.array([0, 1, 4, 5]), own=2)   # columns 4 and 5 attend to 0, 1 and to themselves
    """

    path: np.ndarray  # the columns of the row's tokens
    own: int

    @property
    def shared(self) -> int:
        return len(self.path) - self.own


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of some rows: its columns, in an order in which ancestors come first.

    Example:
        Tree.of([(1, 2, 3, 4, 5), (1, 2, 3, 6, 7)]).ids -> [1, 2, 3, 4, 3, 6]
    """

    ids: np.ndarray  # [N]
    depths: np.ndarray  # [N], the position of each token in its rows
    paths: list[np.ndarray]  # for each row, in the caller's order, the columns of its tokens but the last
    branches: list[Branch]  # their own columns, one after the other, are all columns

    @classmethod
    def of(cls, rows: Rows) -> "Tree":
        """The tree of rows with at least two tokens each."""
        arrays = [np.asarray(row) for row in rows]
        keys = [row.astype(">i8").tobytes() for row in arrays]  # bytes that compare as the rows do
        paths: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(rows)
        ids, depths, branches = [], [], []
        size, before = 0, None
        for place in sorted(range(len(rows)), key=keys.__getitem__):
            row = arrays[place]
            shared = 0 if before is None else max(0, common_length(arrays[before], row) - 1)
            own = len(row) - 1 - shared
            beginning = paths[before][:shared] if before is not None else paths[place]
            paths[place] = np.concatenate([beginning, np.arange(size, size + own)])
            if own:
                branches.append(Branch(paths[place], own))
                ids.append(row[shared:-1])
                depths.append(np.arange(shared, shared + own))
            size += own
            before = place
        return cls(np.concatenate(ids), np.concatenate(depths), paths, branches)


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens both begin with."""
    shorter = min(len(a), len(b))
    different = a[:shorter] != b[:shorter]
    return int(different.argmax()) if different.any() else shorter


def bundles(branches: Sequence[Branch]) -> list[list[Branch]]:
    """Branches that attend together: alike enough that padding them to the largest costs little.

    Branches whose paths share equally much come together first, as one mask is enough for all of them.
    """
    bundled: list[list[Branch]] = []
    for branch in sorted(branches, key=lambda branch: (branch.shared, branch.own)):
        if bundled and fits(bundled[-1], branch):
            bundled[-1].append(branch)
        else:
            bundled.append([branch])
    return bundled


def fits(bundle: list[Branch], branch: Branch) -> bool:
    together = [*bundle, branch]
    real = sum(one.own * len(one.path) for one in together)
    padded = len(together) * max(one.own for one in together) * max(len(one.path) for one in together)
    one_mask = branch.shared == bundle[0].shared
    return padded <= WASTE * real + NEGLIGIBLE and (one_mask or padded <= LARGEST_MASK)
