"""Two pictures of a real rollout: its masks over its tokens, and its way from the mark to the loss. Knows matplotlib.

draw_sequence        tokens, under them env_mask, and over them the completion mask that is shifted by one
draw_training_path   author -> env_mask -> completion mask -> log-probs that are computed -> loss per position
draw_figures         both, of the shortest rollout that shows what there is to see
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ..trajectory import Source
from .figure_parts import INK, QUIET, arrow, bars, blank_figure, box, digit, lane_name, legend, save, token_text
from .shown_rollouts import ShownRollout
from .token_text import cells, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_CELLS = 92  # characters in a line of the sequence
PROMPT_TOKENS = 4  # of the prompt, on the training path
PATH_TOKENS = 48  # columns of the training path


@dataclass(frozen=True, slots=True)
class Position:
    """One position of prompt + completion, as both figures use it.

    Example:
        Position("Oslo", Source.MODEL, mask=1, predicts=1, logprob=-0.3, advantage=0.7)
    """

    text: str
    source: Source
    mask: int  # env_mask
    predicts: int | None  # completion mask: is predicting the next token trained? None behind the last
    logprob: float | None  # of this token
    advantage: float | None  # of this token


def draw_figures(rollouts: Sequence[ShownRollout], folder: str | os.PathLike) -> list[Path]:
    """Draw both of the shortest rollout that has an observation, `sequence.png` and `training_path.png` in a folder.

    Raises:
        ValueError: no rollout has an observation.
    """
    observed = [rollout for rollout in rollouts if any(token.source is Source.ENV for token in rollout.tokens)]
    if not observed:
        raise ValueError(f"none of {len(rollouts)} rollouts has an observation; expected one in which a tool answered")
    rollout = min(observed, key=lambda rollout: (not _is_reinforced(rollout), len(rollout.tokens)))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        draw_sequence(rollout, folder / "sequence.png"),
        draw_training_path(rollout, folder / "training_path.png"),
    ]


def _is_reinforced(rollout: ShownRollout) -> bool:
    advantages = rollout.row.get("advantage")
    return any(value > 0 for value in (advantages if isinstance(advantages, Sequence) else [advantages or 0.0]))


def draw_sequence(rollout: ShownRollout, path: str | os.PathLike) -> Path:
    """Draw the whole rollout, in lines, with its env_mask under it and the shifted completion mask over it.

    Args:
        path: PNG, SVG or PDF, by its suffix.

    Example:
        draw_sequence(view("out/rollouts", tokenizer=tokenizer).rollouts[0], "sequence.svg")
    """
    lines = wrapped(positions(rollout))
    figure, axes = blank_figure(width=13.0, height=1.15 * len(lines) + 0.6)
    axes.set(xlim=(-15, LINE_CELLS + 1), ylim=(-1.15 * len(lines), 0.5))
    for number, line in enumerate(lines):
        _draw_line(axes, line, y=-1.15 * number - 0.6)
    legend(axes)
    return save(figure, path)


def draw_training_path(rollout: ShownRollout, path: str | os.PathLike) -> Path:
    """Draw what becomes of each position: who wrote the token, which prediction is trained, what it adds to the loss.

    The loss is that of the first pass over the rollout, where the ratio of new to old probability is 1. A lane for
    which the row has no values is left out.

    Args:
        path: PNG, SVG or PDF, by its suffix.
    """
    start = max(len(rollout.row["prompt_ids"]) - PROMPT_TOKENS, 0)
    shown_positions = positions(rollout)[start : start + PATH_TOKENS]
    width = max(len(shown_positions), 18)
    figure, axes = blank_figure(width=0.24 * (width + 13), height=6.0)
    for x, position in enumerate(shown_positions):
        _draw_column(axes, x, position)
    end = _draw_lanes(axes, shown_positions)
    axes.set(xlim=(-11, width + 2), ylim=(end, 1.8))
    legend(axes)
    return save(figure, path)


def positions(rollout: ShownRollout) -> list[Position]:
    """Prompt + completion. The completion mask is the mask of the token that follows; policies can clear it."""
    row, tokens = rollout.row, rollout.tokens
    own = {"logprobs": row.get("logprobs"), "advantage": row.get("advantage")}
    foreign, length = [None] * len(row["prompt_ids"]), len(row["completion_ids"])
    columns = [[*foreign, *(v if isinstance(v, list | tuple) else [v] * length)] for v in own.values()]
    env_mask = [*(0 for _ in foreign), *row["env_mask"]]
    trained = [token.mask for token in tokens]
    return [
        Position(shown(token.text), token.source, mask, predicts, *(v if token.mask else None for v in values))
        for token, mask, predicts, *values in zip(tokens, env_mask, [*trained[1:], None], *columns, strict=True)
    ]


def wrapped(sequence: Sequence[Position]) -> list[list[Position]]:
    """Lines of at most LINE_CELLS characters; a token wider than a line has its own."""
    lines: list[list[Position]] = [[]]
    room = LINE_CELLS
    for position in sequence:
        if lines[-1] and width_of(position) > room:
            lines.append([])
            room = LINE_CELLS
        lines[-1].append(position)
        room -= width_of(position)
    return lines


def width_of(position: Position) -> int:
    return max(cells(position.text), 1) + 1


def _draw_line(axes: "Axes", line: Sequence[Position], *, y: float) -> None:
    for name, lane in (("completion mask", y + 0.56), ("token", y + 0.2), ("env_mask", y - 0.12)):
        axes.text(-0.8, lane, name, ha="right", va="center", fontsize=9, color=QUIET)
    x = 0.0
    for position in line:
        width = width_of(position)
        box(axes, x + 0.05, y + 0.02, width - 0.1, 0.36, position.source)
        token_text(axes, x + width / 2, y + 0.2, position.text, fontsize=7.5)
        digit(axes, x + width / 2, y - 0.12, position.mask)
        if position.predicts is not None:
            digit(axes, x + width / 2, y + 0.56, position.predicts)
            axes.annotate(
                "", (x + width + 0.4, y + 0.4), (x + width / 2 + 0.5, y + 0.53), arrowprops=arrow(position.predicts)
            )
        x += width


def _draw_column(axes: "Axes", x: int, position: Position) -> None:
    box(axes, x + 0.04, -1.9, 0.92, 3.1, position.source)
    text = position.text if len(position.text) <= 15 else f"{position.text[:14]}…"
    token_text(axes, x + 0.5, -0.35, text, rotation=90, fontsize=8)
    digit(axes, x + 0.5, -2.5, position.mask)
    if position.predicts is not None:
        digit(axes, x + 0.5, -3.9, position.predicts)
        axes.annotate("", (x + 0.55, -3.65), (x + 1.45, -2.75), arrowprops=arrow(position.predicts))


def _draw_lanes(axes: "Axes", drawn: Sequence[Position]) -> float:
    """Name the lanes; under each trained prediction stand its log-prob and what it adds. Returns the end."""
    following = [(x, after) for x, (at, after) in enumerate(pairwise(drawn)) if at.predicts]
    logprobs = [(x, token.logprob) for x, token in following if token.logprob is not None]
    losses = [(x, -token.advantage) for x, token in following if token.advantage is not None]
    for y, name in (
        (-0.35, "who wrote it"),
        (-2.5, "env_mask"),
        (-3.9, "completion mask:\nis the next token trained?"),
    ):
        lane_name(axes, y, name)
    end = -4.6
    if logprobs:
        lane_name(axes, end - 0.7, "log-prob of the next token,\ncomputed only where it is 1")
        bars(axes, logprobs, top=end, bottom=end - 1.4, color="#4078c0")
        end -= 2.1
    if losses:
        lane_name(axes, end - 0.6, "loss there:\n−advantage × ratio")
        bars(axes, losses, top=end, bottom=end - 1.2, color="#b5488c")
        total = math.fsum(loss for _, loss in losses)
        mean = f"sum {total:+.4g} over {len(losses)} trained positions, mean {total / len(losses):+.4g}"
        axes.text(0, end - 1.9, f"loss of what is drawn: {mean}", fontsize=9.5, color=INK)
        end -= 2.3
    return end
