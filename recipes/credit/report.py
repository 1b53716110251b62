"""Runs as JSON, a table and a plot. Knows what was found: trains nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .tasks import TASKS
from .train import CREDITS, LAST, Run

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # Student's t
WHAT = {"waste": "done without a wasted step", "decisive": "right at the one step that counts"}


def save_runs(runs: Sequence[Run], about: dict[str, Any], *, output_dir: Path) -> None:
    """Write credit.json."""
    output_dir.mkdir(parents=True, exist_ok=True)
    found = {"about": about, "runs": [asdict(run) for run in runs]}
    (output_dir / "credit.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def write_report(runs: Sequence[Run], *, output_dir: Path) -> str:
    """Write credit.md and credit.png; returns the table."""
    text = table(runs)
    (output_dir / "credit.md").write_text(text + "\n", encoding="utf-8")
    plot(runs, output_dir / "credit.png")
    return text


def load_runs(output_dir: Path, about: dict[str, Any]) -> list[Run]:
    """The runs that an interrupted benchmark with the same settings has written down."""
    path = output_dir / "credit.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return [Run(**run) for run in found["runs"]] if found.get("about") == about else []


def table(runs: Sequence[Run]) -> str:
    """Mean and 95 % interval over the seeds of the share of the last rollouts that succeeded."""
    lines = [
        "| credit | " + " | ".join(f"{task}: {WHAT[task]}" for task in TASKS) + " |",
        "| --- |" + " --- |" * len(TASKS),
    ]
    for credit in CREDITS:
        cells = [interval_text([run.final for run in of(runs, task, credit)]) for task in TASKS]
        lines.append(f"| `{credit}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def of(runs: Sequence[Run], task: str, credit: str) -> list[Run]:
    return [run for run in runs if (run.task, run.credit) == (task, credit)]


def interval_text(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    middle, half = interval(values)
    return f"{middle:.2f} ± {half:.2f}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of the 95 % interval by Student's t; NaN with one value. `[1, 2, 3]` -> `(2.0, 2.484)`."""
    if len(values) < 2:
        return mean(values), float("nan")
    return mean(values), T_975[len(values) - 1] * stdev(values) / len(values) ** 0.5


def plot(runs: Sequence[Run], path: Path) -> None:
    """The mean over the seeds against the training step, with its interval."""
    figure, axes = plt.subplots(1, len(TASKS), figsize=(5 * len(TASKS), 3.6), layout="constrained", sharey=True)
    for axis, task in zip(axes, TASKS, strict=True):
        for credit in CREDITS:
            curves = [smoothed(run.success) for run in of(runs, task, credit)]
            points = [interval(values) for values in zip(*curves, strict=True)]
            steps = list(range(1, len(points) + 1))
            (line,) = axis.plot(steps, [middle for middle, _ in points], label=credit)
            low, high = ([middle + sign * half for middle, half in points] for sign in (-1, 1))
            axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.12)
        axis.set(title=f"{task}: {WHAT[task]}", xlabel="training step", ylim=(0, 1))
    axes[0].set_ylabel(f"share of rollouts, mean of {LAST} steps")
    axes[0].legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean of each value and the ones before it, as many as are counted at the end."""
    return [mean(values[max(0, end - LAST) : end]) for end in range(1, len(values) + 1)]
