"""Panels and curves, drawn without a screen. Knows numbers and axes: no records."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .comparison import interval, smoothed


@contextmanager
def panels(path: Path, rows: int, columns: int, *, dpi: int = 110, **options: Any) -> Iterator[Any]:
    """A grid of axes to draw on, [rows, columns], which is written to `path` behind the block.

    Example:
        with panels(folder / "curves.png", 1, 2, figsize=(8, 3.2)) as ((rewards, norms),):
            norms.plot(...)
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(rows, columns, squeeze=False, layout="constrained", **options)
    try:
        yield grid
        for axes in grid.flat:
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=dpi)
    finally:
        pyplot.close(figure)


def draw_mean(axes: Any, curves: Sequence[list[float]], *, label: str, color: str, width: int = 5) -> None:
    """The mean over seeds at each step that all curves have, smoothed over `width` steps, with its 95 % interval."""
    smooth = [smoothed(curve, width) for curve in curves]
    found = [interval(values) for values in zip(*smooth, strict=False)]  # a run may have broken off
    steps = list(range(1, len(found) + 1))
    axes.plot(steps, [value.mean for value in found], label=label, color=color)
    if len(curves) > 1:
        low, high = ([value.mean + sign * value.half for value in found] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=color, alpha=0.15, lw=0)
