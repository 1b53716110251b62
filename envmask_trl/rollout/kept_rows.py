"""What is kept of a rollout between two turns, and in which cache. Knows rows: no model, no sampling.

A cache is shared by the rows that were decoded together last; it stays in memory until the last of them has left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .kv_rows import KVRows
from .samplers import Context


@dataclass(slots=True)
class Kept:
    """One rollout between two turns.

    Example:
        Kept(torch.Generator(), token_ids=(5, 6, 7), home=cache, place=0, turns=1)
    """

    generator: torch.Generator
    token_ids: tuple[int, ...] = ()  # those whose keys are kept
    home: KVRows | None = None
    place: int = 0  # its row in `home`
    turns: int = 0  # that it has played


def continues(context: Context, kept: Kept | None) -> bool:
    """Whether the context is what is kept, and more."""
    if kept is None:
        return False
    known = len(kept.token_ids)
    return len(context.token_ids) > known and context.token_ids[:known] == kept.token_ids


def by_home(kept: Sequence[Kept]) -> list[list[int]]:
    """The places in `kept` of rows that share a cache, together."""
    homes: dict[int, list[int]] = {}
    for place, one in enumerate(kept):
        homes.setdefault(id(one.home), []).append(place)
    return list(homes.values())


def taken(kept: Sequence[Kept]) -> KVRows:
    """A copy of rows that share a cache."""
    assert kept[0].home is not None
    return kept[0].home.take([one.place for one in kept])


def alone(kept: Sequence[Kept]) -> None:
    """Move rows out of caches that they share with others, which would stay in memory with them."""
    for together in by_home(kept):
        rows = [kept[place] for place in together]
        home = rows[0].home
        if home is not None and home.rows_in_memory > len(rows):
            home = taken(rows)
            for place, row in enumerate(rows):
                row.home, row.place = home, place
