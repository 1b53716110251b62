"""Rows as a tree: every token of every row has its column, and a column sees its ancestors and nothing else."""

import random

import numpy as np
import pytest
import torch

from envmask_trl.training.token_tree import LARGEST_MASK, NEGLIGIBLE, WASTE, Branch, Tree, bundles
from envmask_trl.training.tree_attention import TreeAttention


def ancestors(tree):
    """[N, N] by walking the rows: what is to be seen."""
    seen = np.zeros((len(tree.ids), len(tree.ids)), dtype=bool)
    for path in tree.paths:
        for position, column in enumerate(path):
            seen[column, path[: position + 1]] = True
    return seen


def visible(tree):
    """[N, N] as the bundles lay it out; every column asks in one place."""
    attention = TreeAttention.of(tree, torch.device("cpu"))
    seen = np.zeros((len(tree.ids), len(tree.ids)), dtype=bool)
    asked = []
    for bundle in attention.bundles:
        (rows, n), width = bundle.queries.shape, bundle.keys.size(1)
        mask = torch.ones(n, width).tril().bool().view(1, 1, n, width) if bundle.visible is None else bundle.visible
        for queries, keys, sees in zip(bundle.queries, bundle.keys, mask.expand(rows, 1, n, width), strict=True):
            for query, seen_keys in zip(queries.tolist(), sees[0], strict=True):
                asked.append((query, set(keys[seen_keys].tolist())))
    for column, place in enumerate(attention.places.tolist()):
        query, keys = asked[place]
        assert query == column
        seen[column, list(keys)] = True
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
    assert visible(tree).astype(int).tolist() == [
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
    assert (visible(tree) == ancestors(tree)).all()


def test_equal_rows_stand_once_and_rows_that_only_end_differently_fork_at_the_end():
    assert len(Tree.of([[1, 2, 3, 4]] * 5).ids) == 3
    assert len(Tree.of([[1, 2, 3, 4], [1, 2, 3, 5]]).ids) == 4
    assert len(Tree.of([[1, 2, 3], [1, 2, 3, 4, 5]]).ids) == 4, "a row inside another costs nothing"


def branch(*, shared, own):
    return Branch(np.arange(shared + own), own)


@pytest.mark.parametrize("seed", range(50))
def test_a_branch_attends_in_one_bundle_and_padding_it_costs_little(seed):
    rng = random.Random(seed)
    branches = [branch(shared=rng.choice((0, 300, 1_500)), own=rng.randint(1, 2_000)) for _ in range(64)]
    bundled = bundles(branches)
    assert sorted(map(id, branches)) == sorted(id(one) for bundle in bundled for one in bundle)
    for bundle in bundled:
        padded = len(bundle) * max(one.own for one in bundle) * max(len(one.path) for one in bundle)
        assert padded <= WASTE * sum(one.own * len(one.path) for one in bundle) + NEGLIGIBLE


def test_a_group_attends_with_one_mask_and_masks_of_many_rows_stay_small():
    group = [[*range(600), 700 + member, 800, 800] for member in range(8)]
    first, siblings = TreeAttention.of(Tree.of(group), torch.device("cpu")).bundles
    assert first.visible is None and siblings.visible.shape == (1, 1, 3, 602)
    apart = [branch(shared=1_000 + place, own=1_000) for place in range(40)]
    assert all(len(bundle) * 1_000 * 2_039 <= LARGEST_MASK for bundle in bundles(apart))
    assert len(bundles([branch(shared=1_000, own=1_000)] * 40)) == 1
