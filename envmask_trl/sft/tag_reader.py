"""Where the observations and the model's parts stand in a text. Knows text and tags: no tokens.

A text is read only where it can be read in one way: observations do not nest, each follows a call, what stands between
two of them is one turn of the format. Whatever else is there is a `RowProblem`, never a guess. What no reader can know
from the text alone is an observation that holds its own end, a whole turn and another beginning; data that still have
the observations apart give them as `observations`, and then nothing inside them matters.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .parts import Kind, Reason, RowProblem
from .tag_format import OBSERVATION, Marker, TagFormat

AROUND = 24  # characters shown on either side of what is wrong
ONE_TURN = {  # by whether parts have closing tags; letters as in `shape`
    True: re.compile(r"(T?t)?(Cc|Aa)?"),
    False: re.compile(r"T?(C|A)?"),
}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a text by one author.

    Example:
        Span(kind=None, start=41, end=80, content=(54, 66))     # an observation, and the text between its tags
        Span(kind=Kind.CALL, start=12, end=41)
    """

    kind: Kind | None  # None for an observation
    start: int
    end: int
    content: tuple[int, int] = (0, 0)


def read_spans(text: str, fmt: TagFormat, observations: Sequence[str] | None = None) -> list[Span]:
    """The spans of a text that a model and its environment wrote in turns; they cover it without a gap.

        <search>who</search> \\n<information>Ann</information>\\n <answer>Ann</answer>
        CALL                 observation                          ANSWER

    An observation begins with the white space before its tag, since the model stops at its call, and ends with the
    white space behind its closing tag.

    Args:
        observations: their contents, where they are known; without, they are found by their tags alone.

    Raises:
        RowProblem: the text can be read in no way, or in more than one.
    """
    blocks = found_blocks(text, fmt) if observations is None else given_blocks(text, fmt, observations)
    outside = zip([0, *(block.end for block in blocks)], [*(block.start for block in blocks), len(text)], strict=True)
    for start, end in outside:
        hidden = fmt.disguised(text[start:end])
        if hidden is not None:
            raise RowProblem(Reason.NEAR_MISS, f"{hidden!r} is written in other characters than the format's tag")
    spans, position = [], 0
    for number, block in enumerate([*blocks, Span(None, len(text), len(text))]):
        is_last = number == len(blocks)
        if block.start > position or not is_last:
            spans += turn_spans(text, position, block.start, fmt, is_last=is_last)
        if not is_last:
            spans.append(block)
        position = block.end
    return spans


def found_blocks(text: str, fmt: TagFormat) -> list[Span]:
    """The observations by their tags."""
    near = fmt.near_miss(text)
    if near is not None:
        raise RowProblem(Reason.NEAR_MISS, f"{near!r} is written, the format's tag is {fmt.observation[0]!r}")
    markers = fmt.markers(text)
    if fmt.by_line:
        return [
            block(text, marker.start, marker.end, *[after.start if after else len(text)] * 2)
            for marker, after in zip(markers, [*markers[1:], None], strict=True)
            if marker.name == OBSERVATION
        ]
    tags = [marker for marker in markers if marker.name == OBSERVATION]
    for number, marker in enumerate(tags):
        if marker.opens != (number % 2 == 0):
            what = "opens inside an observation" if marker.opens else "closes none"
            raise RowProblem(Reason.UNBALANCED, f"an observation's tag {what} at {around(text, marker)}")
    if len(tags) % 2:
        raise RowProblem(Reason.UNBALANCED, f"an observation is never closed from {around(text, tags[-1])} on")
    return [block(text, o.start, o.end, c.start, c.end) for o, c in zip(tags[::2], tags[1::2], strict=True)]


def given_blocks(text: str, fmt: TagFormat, observations: Sequence[str]) -> list[Span]:
    """The observations by their contents; the first way from the left must be the first way from the right."""
    if not isinstance(observations, list | tuple) or not all(isinstance(each, str) for each in observations):
        raise RowProblem(Reason.TEXT, f"observations is {str(observations)[:60]!r}, expected a list of texts")
    opening, closing = fmt.observation
    head = rf"(?m:^)[ \t]*{re.escape(opening)}" if fmt.by_line else re.escape(opening)
    patterns = [
        re.compile(rf"(?P<open>{head})(?P<content>\s*{re.escape(each.strip())}\s*?)(?P<close>{end_of(fmt)})")
        for each in observations
    ]
    forward, position = [], 0
    for pattern, content in zip(patterns, observations, strict=True):
        match = pattern.search(text, position)
        if match is None:
            raise RowProblem(
                Reason.NOT_FOUND, f"no observation {content[:40]!r} between {opening!r} and {closing!r} in its place"
            )
        forward.append(match)
        position = match.end()
    limit = len(text)
    for pattern, chosen in zip(reversed(patterns), reversed(forward), strict=True):
        last = [match for match in pattern.finditer(text) if match.end() <= limit][-1]
        if last.start() != chosen.start():
            raise RowProblem(Reason.NOT_FOUND, f"an observation stands in more than one place: {last.group()[:40]!r}")
        limit = chosen.start()
    blocks = [block(text, m.start("open"), m.end("open"), m.start("close"), m.end("close")) for m in forward]
    edges = [0, *(edge for each in blocks for edge in (each.start, each.end)), len(text)]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        own = next((marker for marker in fmt.markers(text[start:end]) if marker.name == OBSERVATION), None)
        if own is not None:
            raise RowProblem(
                Reason.UNBALANCED, f"the model's own text has an observation's tag at {around(text[start:end], own)}"
            )
    return blocks


def end_of(fmt: TagFormat) -> str:
    """A pattern for what ends an observation: its closing tag, or the next part's beginning."""
    if fmt.observation[1] is not None:
        return re.escape(fmt.observation[1])
    words = [re.escape(tag[0].rstrip().removesuffix(":")) for name, tag in fmt.tags.items() if name != OBSERVATION]
    return rf"(?=\s*\Z|\n[ \t]*(?:{'|'.join(words)})(?: \d+)?:)"


def block(text: str, start: int, content_start: int, content_end: int, end: int) -> Span:
    """An observation with the white space around it."""
    return Span(
        None,
        len(text[:start].rstrip()),
        end + len(text[end:]) - len(text[end:].lstrip()),
        (content_start, content_end),
    )


def turn_spans(text: str, start: int, end: int, fmt: TagFormat, *, is_last: bool) -> list[Span]:
    """The parts of one turn of the model.

    Raises:
        RowProblem: the text is not one turn: a part twice or in a wrong order, or an observation that follows no call.
    """
    turn = text[start:end]
    shown = repr(turn if len(turn) <= 2 * AROUND else f"{turn[:AROUND]}...{turn[-AROUND:]}")
    if not turn.strip():
        raise RowProblem(
            Reason.NOT_A_TURN, f"the model wrote nothing before the observation at {text[end:][:AROUND]!r}"
        )
    markers = fmt.markers(turn)
    shape = "".join(letter(marker) for marker in markers)
    if not ONE_TURN[not fmt.by_line].fullmatch(shape):
        tags = [turn[marker.start : marker.end] for marker in markers]
        raise RowProblem(Reason.NOT_A_TURN, f"the tags {tags} in {shown} are not those of one turn")
    ends_in_call = shape.endswith("C" if fmt.by_line else "c")
    if fmt.call is not None and not is_last and not ends_in_call:
        raise RowProblem(Reason.NOT_A_TURN, f"an observation follows {shown}, which has no call")
    ends = [marker.end for marker in markers if not marker.opens and marker.name != Kind.THOUGHT.value]
    if ends and turn[ends[-1] :].strip():
        raise RowProblem(Reason.NOT_A_TURN, f"text follows the end of the turn in {shown}")
    is_call = "C" in shape or (fmt.call is None and not is_last)
    cut = thought_end(turn, markers, fmt)
    return [
        Span(each, start + left, start + right)
        for each, left, right in (
            (Kind.THOUGHT, 0, cut),
            (Kind.CALL if is_call else Kind.ANSWER, cut, len(turn)),
        )
        if right > left
    ]


def thought_end(turn: str, markers: Sequence[Marker], fmt: TagFormat) -> int:
    """Where the turn's call or answer begins."""
    for marker in markers:
        if marker.name != Kind.THOUGHT:
            return marker.start
    if fmt.by_line:
        return len(turn) if markers else 0
    return markers[-1].end if markers else 0


def letter(marker: Marker) -> str:
    """`<think>` is T and `</think>` is t; C and c for calls, A and a for answers, O and o for observations."""
    name = marker.name[0].upper()
    return name if marker.opens else name.lower()


def around(text: str, marker: Marker) -> str:
    return repr(text[max(0, marker.start - AROUND) : marker.end + AROUND])
