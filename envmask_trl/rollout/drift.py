"""Where ids that a rollout holds differ from ids that a template renders. Knows ids and text: no template, no rollout.

held      a b <think> x </think> c E                 gap: "<think> x </think>" -> ""
rendered  a b c E n t t n h                          added: from n on
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from .content_guard import overlaps


class DriftKind(StrEnum):
    """What a rendering changed in ids that a rollout holds already."""

    TOKENS = "tokens"  # the same text in other tokens
    THINKING = "thinking"  # a thinking block, or a part of one
    SPECIAL_TOKEN = "special_token"  # nothing but control tokens
    CALL_JSON = "call_json"  # inside a JSON object: white space, the order of keys, escapes
    WHITE_SPACE = "white_space"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Drift:
    """One place at which held and rendered ids differ.

    Example:
        Drift(DriftKind.CALL_JSON, position=57, held='{"a":1', rendered='{"a": 1')
    """

    kind: DriftKind
    position: int  # in the held ids
    held: str
    rendered: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Held ids `start:end` stand where rendered ids `rendered_start:rendered_end` stand."""

    start: int
    end: int
    rendered_start: int
    rendered_end: int


def realign(held: Sequence[int], rendered: Sequence[int]) -> tuple[int, list[Gap]]:
    """How many rendered ids stand for what is held, and the gaps on the way there.

    Nothing is computed while `rendered` starts with `held`; what differs is aligned by its longest common subsequence,
    of several the one that ends first.

    Example:
        realign([1, 2, 3, 9], [1, 3, 9, 7, 7]) -> (3, [Gap(1, 2, 1, 1)])
    """
    same = common_length(held, rendered)
    if same == len(held):
        return same, []
    matches = common_subsequence(held[same:], rendered[same:])
    left = right = boundary = same
    gaps = []
    for i, j in matches:
        if same + i > left or same + j > right:
            gaps.append(Gap(left, same + i, right, same + j))
        left, right = same + i + 1, same + j + 1
        boundary = right
    if left < len(held):
        gaps.append(Gap(left, len(held), right, right))
    return boundary, gaps


def common_subsequence(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, by the table of lengths of all prefixes: O(len * len)."""
    targets = np.asarray(right, dtype=np.int64)
    lengths = np.zeros((len(left) + 1, len(right) + 1), dtype=np.int32)
    for i, token in enumerate(left):
        extended = np.where(targets == token, lengths[i, :-1] + 1, 0)
        np.maximum.accumulate(np.maximum(lengths[i, 1:], extended), out=lengths[i + 1, 1:])
    pairs = []
    i, j = len(left), int(lengths[-1].argmax())
    while i and j:
        if left[i - 1] == right[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif lengths[i - 1, j] >= lengths[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def name_gaps(
    gaps: Sequence[Gap],
    held: Sequence[int],
    rendered: Sequence[int],
    *,
    decode: Callable[[Sequence[int]], str],
    control_ids: Collection[int],
    thoughts: Sequence[str] = (),
) -> tuple[Drift, ...]:
    """The gaps of `realign` by kind.

    Args:
        gaps: as `realign(held, rendered)` gave them.
        held: ids of the rollout.
        rendered: ids of the template's rendering.
        decode: from ids to text, control tokens included.
        control_ids: ids of control tokens.
        thoughts: texts of the thinking of the rollout's turns.
    """
    whole, shown = decode(held), decode(rendered)
    thought_spans = [(start, start + len(t)) for t in thoughts if t and (start := whole.find(t)) >= 0]
    spans, shown_spans = json_spans(whole), json_spans(shown)
    found = []
    for gap in gaps:
        old, new = held[gap.start : gap.end], rendered[gap.rendered_start : gap.rendered_end]
        before, after = decode(old), decode(new)
        at, shown_at = len(decode(held[: gap.start])), len(decode(rendered[: gap.rendered_start]))
        if before == after:
            kind = DriftKind.TOKENS
        elif "think" in before + after or overlaps(at, at + len(before), thought_spans):
            kind = DriftKind.THINKING
        elif control_ids and set(old) | set(new) <= set(control_ids):
            kind = DriftKind.SPECIAL_TOKEN
        elif overlaps(at, at + len(before), spans) or overlaps(shown_at, shown_at + len(after), shown_spans):
            kind = DriftKind.CALL_JSON
        else:
            blank = "".join(before.split()) == "".join(after.split())
            kind = DriftKind.WHITE_SPACE if blank else DriftKind.OTHER
        found.append(Drift(kind, gap.start, before, after))
    return tuple(found)


def json_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each outermost JSON object in `text`: `'a {"b": {}} c'` -> `[(2, 11)]`."""
    decoder, spans, start = json.JSONDecoder(), [], text.find("{")
    while start >= 0:
        try:
            _, end = decoder.raw_decode(text, start)
            spans.append((start, end))
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)
    return spans


def common_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many items both start with: `([1, 2, 3], [1, 2, 4])` -> 2."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
