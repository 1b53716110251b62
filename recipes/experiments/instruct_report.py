"""The instruct model's figure and table, from the kept numbers alone. Knows what was found; trains nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .comparison import smoothed, wilson
from .figures import panels
from .markdown import replace_section

COLUMNS = {"0 to 2 calls": ("0", "1", "2"), "3 calls": ("3",)}


def write_report(data: Mapping[str, Any], *, output: Path, report: Path | None = None) -> None:
    """Write instruct_model.md, .json and .png into `output`, and the table into a marked section of `report`.

    Where there is a `report`, its folder `results` gets the numbers and the figure too.
    """
    settings = data["settings"]
    data = {**data, "settings": {**settings, "model": Path(settings["model"]).name}}  # a folder is nobody else's
    text = table(data)
    folders = [output] if report is None else [output, report.parent / "results"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "instruct_model.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        (folder / "instruct_model.md").write_text(text + "\n", encoding="utf-8")
        draw(data, folder / "instruct_model.png")
    if report is not None:
        figure = "![right answers and gradient norm in training](results/instruct_model.png)"
        replace_section(report, "instruct model", f"{text}\n\n{figure}")


def table(data: Mapping[str, Any]) -> str:
    """Held-out success in each phase, with Wilson's intervals, and the seconds that each took."""
    cells = [f"{name}, {decoding}" for decoding in ("sampled", "greedy") for name in COLUMNS]
    lines = ["| held-out success | " + " | ".join(cells) + " |", "| --- |" + " ---: |" * len(cells)]
    for phase, found in data["held_out"].items():
        shares = [share(found[decoding], calls) for decoding in ("sampled", "greedy") for calls in COLUMNS.values()]
        lines.append(f"| {phase} | {' | '.join(shares)} |")
    on, settings = data["on"], data["settings"]
    seconds = ", ".join(f"{name} {taken:.0f} s" for name, taken in data["seconds"].items())
    lines += [
        "",
        f"`{settings['model']}`, seed {settings['seed']}, {settings['demonstrations']} demonstrations, "
        f"{settings['steps']} GRPO steps; 95 % intervals by Wilson. {seconds}. {on['processor']}, {on['threads']} of "
        f"{on['cores']} cores; torch {on['torch']}, transformers {on['transformers']}, trl {on['trl']}.",
    ]
    return "\n".join(lines)


def share(counts: Mapping[str, list[int]], calls: tuple[str, ...]) -> str:
    """ "0.42 (0.27 to 0.58) of 36": right answers to questions that need any of `calls` calls."""
    right, asked = (sum(counts[each][place] for each in calls if each in counts) for place in (0, 1))
    low, high = wilson(right, asked)
    return f"{right / asked:.2f} ({low:.2f} to {high:.2f}) of {asked}"


def draw(data: Mapping[str, Any], path: Path) -> None:
    """Right answers in each GRPO step's rollouts, and the gradient norm."""
    curves = data["training"]["GRPO"]
    steps = range(1, len(curves["right_answers"]) + 1)
    with panels(path, 1, 2, figsize=(8, 3.2)) as ((right, norms),):
        right.plot(steps, curves["right_answers"], color="C0", lw=0.6, alpha=0.5)
        right.plot(steps, smoothed(curves["right_answers"]), color="C0")
        right.set(title="right answers in training", xlabel="GRPO step", ylim=(0, 1))
        norms.plot(steps, curves["grad_norm"], color="C0")
        norms.set(title="gradient norm", xlabel="GRPO step", ylim=(0, None))
