"""Rollouts as coloured lines of text. Knows terminals: no markup, no tokenizer.

What is 7*6?mul 7 6<|im_end|>⏎
0   0  000001  11111         0
"""

import os
import sys
from collections.abc import Iterator, Sequence

from ..trajectory import Source
from .shown_rollouts import ShownRollout, Token
from .token_text import cells, shown

ANSI = {Source.PROMPT: "90", Source.MODEL: "32", Source.ENV: "38;5;208", Source.TEMPLATE: "38;5;67"}


def wants_color() -> bool:
    """Whether to colour what is printed now: on a terminal, unless NO_COLOR (no-color.org) or TERM=dumb say no."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def legend(color: bool) -> str:
    return "  ".join(painted(source, source, color) for source in Source) + "  1 trained  0 not trained"


def block(number: int, rollout: ShownRollout, *, width: int, color: bool, prompt_tokens: int | None) -> str:
    """One rollout: its facts, its calls, its tokens over their digits. Of the prompt the last `prompt_tokens`."""
    facts = "  ".join(f"{name} {value}" for name, value in rollout.facts)
    folded = 0 if prompt_tokens is None else max(len(rollout.row["prompt_ids"]) - prompt_tokens, 0)
    heading = [f"#{number}  {shown(facts)}  ({rollout.counts})"]
    for result in rollout.tool_results:
        heading.append(f"call {shown(result['name'])}: {result['status']}, {result['latency_s']:.3g} s")
    heading += [painted(f"... {folded} prompt tokens", Source.PROMPT, color)] if folded else []
    return "\n".join([*heading, *(_painted_line(line, color) for line in _lines(rollout.tokens[folded:], width))])


def painted(text: str, source: Source, color: bool) -> str:
    return f"\x1b[{ANSI[source]}m{text}\x1b[0m" if color else text


def _lines(tokens: Sequence[Token], width: int) -> Iterator[list[Token]]:
    """Cut where a token ends in a line break, and where the next one would not fit."""
    line: list[Token] = []
    room = width
    for token in tokens:
        if line and cells(shown(token.text)) > room:
            yield line
            line, room = [], width
        line.append(token)
        room -= max(cells(shown(token.text)), 1)
        if "\n" in token.text:
            yield line
            line, room = [], width
    if line:
        yield line


def _painted_line(line: Sequence[Token], color: bool) -> str:
    texts, digits = [], []
    for token in line:
        text = shown(token.text)
        texts.append(painted(text, token.source, color))
        digits.append(painted(str(token.mask), token.source, color) + " " * (cells(text) - 1))
    return f"{''.join(texts)}\n{''.join(digits).rstrip()}"
