"""Cuts a text to a number of tokens, with a mark that the reader can see. Knows one text: no template."""

from collections.abc import Callable

from .limits import Cut

Offsets = Callable[[str], list[tuple[int, int]]]  # from a text to the start and end of each of its tokens

CHARACTERS_PER_TOKEN = 8  # where a text has more, as runs of one character do, more of it is tokenised
SHORT_MARK = " [cut] "  # where there is no room for one that says how much
SPARE_TOKENS = 4  # tried beyond the estimate: tokens may merge at the mark, and the mark loses its space at an end


def cut_text(text: str, max_tokens: int, cut: Cut, offsets: Offsets) -> str:
    """`text` in at most `max_tokens` tokens, the mark included. Whole characters only; unchanged if it fits.

    A limit that is smaller than the mark gets a shorter mark, and one that is smaller than that, nothing.

    Example (cut="tail"):
        "a b c d e f g h" -> "a b [cut: tail of 8 tokens]"
    """
    shortened, spans = _enough(text, max_tokens, cut, offsets)
    if len(spans) <= max_tokens and len(shortened) == len(text):
        return text
    total = str(len(spans)) if len(shortened) == len(text) else f"over {len(spans)}"
    marks = (cut_mark(cut, total), SHORT_MARK, "")
    mark = next(each for each in marks if not each or len(offsets(each.strip())) <= max_tokens)
    if not mark:
        return ""
    keep = max(max_tokens - len(offsets(mark)) + SPARE_TOKENS, 0)
    keep = min(keep, len(spans) - 1)
    while keep and len(offsets(_keep(shortened, spans, keep, cut, mark))) > max_tokens:
        keep -= 1
    return _keep(shortened, spans, keep, cut, mark)


def _enough(text: str, max_tokens: int, cut: Cut, offsets: Offsets) -> tuple[str, list[tuple[int, int]]]:
    """As much of `text` as `max_tokens` can come from, at the ends that are not cut, and its tokens.

    Ten megabytes are not tokenised for two hundred tokens.
    """
    characters = max(max_tokens, 1) * CHARACTERS_PER_TOKEN
    while True:
        shortened = _shorten(text, characters, cut)
        spans = offsets(shortened)
        front = sum(end <= characters for _, end in spans) if cut == "middle" else len(spans)
        back = len(spans) - front if cut == "middle" else len(spans)
        if len(shortened) == len(text) or min(front, back) > max_tokens + SPARE_TOKENS:
            return shortened, spans
        characters *= 4


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
    """The ends of a text that are not cut, 2 * `max_characters` of it; all of a text that is not longer."""
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
