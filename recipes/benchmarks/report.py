"""Results as JSON, a table and a plot. Knows what was found; measures nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .results import Figure, Result

COLORS = {"trl": "tab:gray", "ours": "tab:blue"}
HEADER = ("", "figure", "TRL", "ours", "value", "in CPU time", "steps", "bar", "reached")


def write_report(results: Sequence[Result], machine: dict[str, Any], *, output_dir: Path) -> str:
    """Write benchmarks.json, benchmarks.md and benchmarks.png; returns the table."""
    output_dir.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "results": [as_json(result) for result in results]}
    (output_dir / "benchmarks.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = f"{table(results)}\n\n{checks_table(results)}\n\n{sentence(machine)}\n"
    (output_dir / "benchmarks.md").write_text(text, encoding="utf-8")
    plot(results, output_dir / "benchmarks.png")
    return text


def as_json(result: Result) -> dict:
    found = asdict(result)
    found["figures"] = [asdict(figure) | {"reached": figure.reached} for figure in result.figures]
    found["checks"] = [asdict(check) | {"equal": check.equal} for check in result.checks]
    return found


def table(results: Sequence[Result]) -> str:
    """Every figure; seconds are medians of `steps`, a value of 3 x means that TRL takes three times as much."""
    rows = [row(result, figure) for result in results for figure in result.figures]
    return markdown([HEADER, *rows])


def row(result: Result, figure: Figure) -> tuple[str, ...]:
    sign = "<=" if figure.at_most else ">="
    return (
        f"({result.letter})" if len(result.letter) == 1 else result.letter,
        figure.name,
        number(figure.theirs),
        number(figure.ours),
        f"{number(figure.value)} {figure.unit}",
        number(figure.in_cpu_time),
        str(result.steps),
        f"{sign} {figure.bar:g}" if figure.bar is not None else "",
        {None: "", True: "yes", False: "no"}[figure.reached],
    )


def checks_table(results: Sequence[Result]) -> str:
    """For each benchmark the largest difference of each kind."""
    rows = [("", "what is equal", "largest difference", "tolerance", "equal")]
    for result in results:
        for name in dict.fromkeys(check.name for check in result.checks):
            worst = max((c for c in result.checks if c.name == name), key=lambda check: check.difference)
            rows.append(
                (result.letter, name, f"{worst.difference:.2g}", f"{worst.tolerance:g}", "yes" if worst.equal else "no")
            )
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1_000 else f"{value:,.0f}"


def sentence(machine: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("python", "torch", "transformers", "trl", "envmask_trl")
    )
    return (
        f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, load {machine['load']:.1f} at the "
        f"start; float32; {versions}. Medians of so many steps of each side, in turn."
    )


def plot(results: Sequence[Result], path: Path) -> None:
    """The ratios as bars, and each series as lines against what it grows with."""
    ratios = [(r.letter, f) for r in results for f in r.figures if f.unit == "x" and f.theirs and not f.at_most]
    panels = {f"({r.letter}) {name}" for r in results for name in (key.rpartition(", ")[0] for key in r.series)}
    figure, axes = plt.subplots(1, 1 + len(panels), figsize=(5 + 4 * len(panels), 4.5), layout="constrained")
    axes = list(axes) if panels else [axes]
    axes[0].barh([f"({letter}) {f.name}" for letter, f in ratios], [f.value for _, f in ratios], color=COLORS["ours"])
    axes[0].invert_yaxis()
    axes[0].axvline(1.0, color="black", linewidth=0.8)
    axes[0].set_xlabel("TRL / ours")
    axes[0].tick_params(labelsize=7)
    for axis, panel in zip(axes[1:], sorted(panels), strict=True):
        for result in results:
            for key, points in result.series.items():
                name, _, side = key.rpartition(", ")
                if panel == f"({result.letter}) {name}":
                    axis.plot(*zip(*points, strict=True), "o-", color=COLORS[side], label=side, markersize=3)
        axis.set(xlabel=panel.partition(" ")[2], ylabel="seconds", ylim=(0, None), title=panel[:3])
        axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
