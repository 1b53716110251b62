"""Rows as a tree: every token of every row has its column, and a column sees its ancestors and nothing else."""

import random

import numpy as np
import pytest

from envmask_trl.training.token_tree import Tree, split_into_lanes


def ancestors(tree):
    """[N, N] by walking the rows: what is to be seen."""
    seen = np.zeros((len(tree.ids), len(tree.ids)), dtype=bool)
    for path in tree.paths:
        for position, column in enumerate(path):
            seen[column, path[: position + 1]] = True
    return seen


def random_rows(rng):
    """Rows that share beginnings of all lengths: equal ones, one inside another, nothing in common."""
    stems = [[rng.randint(1, 3) for _ in range(rng.randint(1, 9))] for _ in range(3)]
    return [
        rng.choice(stems)[: rng.randint(1, 9)] + [rng.randint(1, 3) for _ in range(rng.randint(1, 5))]
        for _ in range(rng.randint(1, 9))
    ]


def test_the_picture():
    tree = Tree.of([(1, 2, 3, 4, 5), (1, 2, 3, 6, 7)])
    assert tree.ids.tolist() == [1, 2, 3, 4, 3, 6]
    assert tree.depths.tolist() == [0, 1, 2, 3, 2, 3]
    assert [path.tolist() for path in tree.paths] == [[0, 1, 2, 3], [0, 1, 4, 5]]
    assert tree.visible().astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("seed", range(200))
def test_any_rows(seed):
    rows = random_rows(random.Random(seed))
    tree = Tree.of(rows)
    predicted = {}
    for row, path in zip(rows, tree.paths, strict=True):
        assert tree.ids[path].tolist() == row[:-1] and tree.depths[path].tolist() == list(range(len(row) - 1))
        for column, following in zip(path.tolist(), row[1:], strict=True):
            assert predicted.setdefault(column, following) == following, "a column predicts one token"
    assert sorted(predicted) == list(range(len(tree.ids))), "no column is for nothing"
    assert (tree.visible() == ancestors(tree)).all()


def test_equal_rows_stand_once_and_rows_that_only_end_differently_fork_at_the_end():
    assert len(Tree.of([[1, 2, 3, 4]] * 5).ids) == 3
    assert len(Tree.of([[1, 2, 3, 4], [1, 2, 3, 5]]).ids) == 4
    assert len(Tree.of([[1, 2, 3], [1, 2, 3, 4, 5]]).ids) == 4, "a row inside another costs nothing"


@pytest.mark.parametrize("seed", range(50))
def test_lanes_hold_every_row_once(seed):
    rows = random_rows(random.Random(seed))
    for attention_at in (1, 10, 10_000):
        lanes = split_into_lanes(rows, attention_at=attention_at)
        assert sorted(row for lane in lanes for row in lane) == list(range(len(rows)))


def test_a_group_with_a_long_prompt_shares_a_lane_and_short_rows_of_two_groups_do_not():
    groups = [[*range(group, group + 100), 200 + member, 300, 300] for group in (1, 1000) for member in range(8)]
    assert {frozenset(lane) for lane in split_into_lanes(groups, attention_at=400)} == {
        frozenset(range(8)),
        frozenset(range(8, 16)),
    }
    assert len(split_into_lanes(groups, attention_at=10_000_000)) <= 2
    apart = [[group * 1000 + position for position in range(100)] for group in range(8)]
    assert all(len(lane) == 1 for lane in split_into_lanes(apart, attention_at=100))
