"""Runs as JSON, a table and a plot. Knows what was found: trains nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..experiments.comparison import interval
from ..experiments.figures import draw_mean, panels
from .tasks import TASKS
from .train import CREDITS, LAST, Run

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
        cells = [str(interval([run.final for run in of(runs, task, credit)])) for task in TASKS]
        lines.append(f"| `{credit}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def of(runs: Sequence[Run], task: str, credit: str) -> list[Run]:
    return [run for run in runs if (run.task, run.credit) == (task, credit)]


def plot(runs: Sequence[Run], path: Path) -> None:
    """The mean over the seeds against the training step, with its interval."""
    with panels(path, 1, len(TASKS), dpi=120, figsize=(5 * len(TASKS), 3.6), sharey=True) as (row,):
        for axes, task in zip(row, TASKS, strict=True):
            for number, credit in enumerate(CREDITS):
                curves = [run.success for run in of(runs, task, credit)]
                draw_mean(axes, curves, label=credit, color=f"C{number}", width=LAST)
            axes.set(title=f"{task}: {WHAT[task]}", xlabel="training step", ylim=(0, 1))
        row[0].set_ylabel(f"share of rollouts, mean of {LAST} steps")
        row[0].legend(loc="upper left", fontsize=8)
