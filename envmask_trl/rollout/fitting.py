"""Cuts a text to a number of tokens, with a mark that the reader can see. Knows one text: no template."""

from collections.abc import Callable

from .limits import Cut

Offsets = Callable[[str], list[tuple[int, int]]]  # from a text to the start and end of each of its tokens

MAX_CHARACTERS_PER_TOKEN = 64  # longer tokens exist only for runs of one character
SPARE_TOKENS = 4  # tried beyond the estimate: tokens may merge at the mark, and the mark loses its space at an end


def cut_text(text: str, max_tokens: int, cut: Cut, offsets: Offsets) -> str:
    """`text` in at most `max_tokens` tokens, the mark included. Whole characters only; unchanged if it fits.

    A limit that is smaller than the mark gives the mark alone.

    Example (cut="tail"):
        "a b c d e f g h" -> "a b [5 of 8 tokens cut]"
    """
    shortened = _shorten(text, max_tokens * MAX_CHARACTERS_PER_TOKEN, cut)
    spans = offsets(shortened)
    if len(spans) <= max_tokens and len(shortened) == len(text):
        return text
    total = str(len(spans)) if len(shortened) == len(text) else f"over {len(spans)}"
    mark = cut_mark(cut, total)
    keep = max(max_tokens - len(offsets(mark)) + SPARE_TOKENS, 0)
    keep = min(keep, len(spans) - 1)
    while keep and len(offsets(_keep(shortened, spans, keep, cut, mark))) > max_tokens:
        keep -= 1
    return _keep(shortened, spans, keep, cut, mark)


def cut_mark(cut: Cut, total: str) -> str:
    """What stands in place of what was cut: `cut_mark("tail", "5000")` -> " [cut: tail of 5000 tokens] "."""
    return f" [cut: {cut} of {total} tokens] "


def _keep(text: str, spans: list[tuple[int, int]], keep: int, cut: Cut, mark: str) -> str:
    """Keep `keep` tokens of `text` at the ends that are not cut. A character is never divided."""
    if keep == 0:
        return mark.strip()
    if cut == "tail":
        return text[: spans[keep - 1][0]] + mark.rstrip()
    if cut == "head":
        return mark.lstrip() + text[spans[-keep][1] :]
    front = keep // 2
    back = keep - front
    head = text[: spans[front - 1][0]] if front else ""
    return head + mark + text[spans[-back][1] :]


def _shorten(text: str, max_characters: int, cut: Cut) -> str:
    """Drop what cannot be kept anyway, so that ten megabytes are not tokenised for two hundred tokens."""
    if len(text) <= 2 * max_characters:
        return text
    if cut == "tail":
        return text[: 2 * max_characters]
    if cut == "head":
        return text[-2 * max_characters :]
    return text[:max_characters] + text[-max_characters:]


def even_limits(sizes: list[int], total: int) -> list[int]:
    """Limits that sum to at most `total` and cut the largest sizes first: `([10, 2, 6], 12)` -> `[5, 2, 5]`."""
    limits = [0] * len(sizes)
    left = max(total, 0)
    for rank, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        limits[index] = min(sizes[index], left // (len(sizes) - rank))
        left -= limits[index]
    return limits
