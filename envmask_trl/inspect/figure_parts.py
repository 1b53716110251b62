"""What the figures are made of: boxes, digits, arrows, bars, lanes. Knows matplotlib: no rollouts, no tokens."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trajectory import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILL = {Source.PROMPT: "#e4e7eb", Source.MODEL: "#b9ecc4", Source.ENV: "#ffd9ad", Source.TEMPLATE: "#cfdcee"}
INK = "#1c2128"
QUIET = "#8a929c"


def bars(axes: "Axes", values: Sequence[tuple[int, float]], *, top: float, bottom: float, color: str) -> None:
    """Bars between two heights, over or under their own zero line; behind the last stands the longest one's value."""
    finite = [value for _, value in values if math.isfinite(value)]
    low, high = min([*finite, 0.0]), max([*finite, 0.0])
    scale = (top - bottom) / (high - low or 1.0)
    zero = bottom - low * scale
    axes.plot([values[0][0], values[-1][0] + 1], [zero, zero], color=QUIET, linewidth=0.6)
    for x, value in values:
        axes.bar(x + 0.5, value * scale if math.isfinite(value) else 0.0, width=0.7, bottom=zero, color=color)
    largest = max(finite, key=abs, default=math.nan)
    axes.text(values[-1][0] + 1.3, zero + largest * scale / 2, f"{largest:+.3g}", va="center", fontsize=8, color=color)


def box(axes: "Axes", x: float, y: float, width: float, height: float, source: Source) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=FILL[source], edgecolor="none"))


def token_text(axes: "Axes", x: float, y: float, text: str, **style: Any) -> None:
    """Text as it is: a dollar sign starts no formula."""
    axes.text(x, y, text, ha="center", va="center", family="monospace", color=INK, parse_math=False, **style)


def digit(axes: "Axes", x: float, y: float, value: int) -> None:
    weight, color = ("bold", "#0b6b2b") if value else ("normal", QUIET)
    axes.text(x, y, str(value), ha="center", va="center", fontsize=8.5, fontweight=weight, color=color)


def arrow(trained: int) -> dict[str, Any]:
    color = "#2da44e" if trained else "#d0d5db"
    return {"arrowstyle": "-|>", "mutation_scale": 6, "linewidth": 0.7, "color": color, "shrinkA": 0, "shrinkB": 0}


def lane_name(axes: "Axes", y: float, name: str) -> None:
    axes.text(-0.6, y, name, ha="right", va="center", fontsize=9.5, color=INK)


def legend(axes: "Axes") -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=color, label=str(source)) for source, color in FILL.items()]
    axes.legend(handles=handles, loc="upper right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9)


def blank_figure(*, width: float, height: float) -> tuple[Any, "Axes"]:
    """A figure of its own, so that no pyplot state is touched."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_axis_off()
    return figure, axes


def save(figure: Any, path: str | os.PathLike) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
