"""The fault atlas's figure and tables, from its records alone. Knows what was found; trains nothing."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from math import ceil
from pathlib import Path
from textwrap import fill

from .comparison import interval, smoothed
from .figures import draw_mean, panels
from .findings import only_here
from .markdown import replace_section
from .mask_report import COMPARED, Seeds, curves_of, paired_difference, success, tail_mean
from .records import Record, by_arm

CLEAN = "clean"
WATCHED = ("grad_norm", "plays_environment", "env_token_share", "calls", "unfinished", "reward")  # what a user sees
IN_A_ROW = 5  # steps for which a metric has to stay outside, before it is said to say something
EDGE = 10  # steps at the beginning and at the end that are averaged
WHEN = {  # each tool, the earliest first
    "doctor": "before training",
    "audit": "before the first update",
    "saved audit": "from the first step's rollouts",
    "lint": "from the first step's rollouts",
}


def draw_and_report(records: list[Record], *, output: Path, report: Path | None = None) -> None:
    """Write fault_atlas.png and .md into `output`, and the tables into a marked section of `report`."""
    arms = by_arm(records)
    text = "\n\n".join([outcome_table(arms), atlas_table(arms)])
    (output / "fault_atlas.md").write_text(text + "\n", encoding="utf-8")
    if report is not None:
        figure = f"![each fault beside the clean run]({output.name}/fault_atlas.png)"
        replace_section(report, "fault atlas", f"{text}\n\n{figure}")
    draw(arms, output / "fault_atlas.png")


def outcome_table(arms: Mapping[str, Seeds]) -> str:
    """What became of the model under each fault."""
    lines = [
        "| fault | seeds | right answers in training, last 10 steps | held-out success, sampled, 0-2 calls "
        "| minus clean (paired) | p | gradient norm, first 10 steps | last 10 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for seeds in arms.values():
        ran = [record["curves"] for record in seeds.values() if record["curves"]["grad_norm"]]
        cells = [
            str(len(seeds)),
            over_seeds([curves["right_answers"][-EDGE:] for curves in ran]),
            str(interval([success(record, "sampled", COMPARED) for record in seeds.values()])),
            *difference(seeds, arms),
            over_seeds([curves["grad_norm"][:EDGE] for curves in ran]),
            over_seeds([curves["grad_norm"][-EDGE:] for curves in ran]),
        ]
        lines.append(f"| {what(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def atlas_table(arms: Mapping[str, Seeds]) -> str:
    """Who said so of each fault, and when."""
    lines = [
        "| fault | named first by | audit, lint, doctor (of the first step) | warnings (step) "
        "| metrics outside of the clean runs (from step) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for arm, seeds in arms.items():
        cells = [first_named(arm, arms), named_by(arm, arms), warned(seeds), deviating(arm, arms)]
        lines.append(f"| {what(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def what(seeds: Seeds) -> str:
    """The fault in words."""
    return str(next(iter(seeds.values()))["settings"]["fault"])


def over_seeds(parts: Sequence[list[float]]) -> str:
    """The mean over seeds of each seed's mean, with its interval; "no step" where training broke off at once."""
    return str(interval([tail_mean(part) for part in parts])) if parts else "no step"


def difference(seeds: Seeds, arms: Mapping[str, Seeds]) -> tuple[str, str]:
    """The mean of the seeds' differences to the clean run with its interval, and p."""
    clean = arms.get(CLEAN, {})
    return ("", "") if seeds is clean else paired_difference(seeds, clean)


def named_by(arm: str, arms: Mapping[str, Seeds]) -> str:
    """Tools that say something of this arm which they do not say of the clean run of the same seed, and of how many."""
    said = said_by(arm, arms)
    seeds = len(arms[arm])
    return "; ".join(
        f"{tool} ({len(found)} of {seeds}): {', '.join(dict.fromkeys(chain.from_iterable(found)))}"
        for tool, found in said.items()
        if found
    )


def first_named(arm: str, arms: Mapping[str, Seeds]) -> str:
    """The earliest tool that speaks on every seed, otherwise the one that speaks on most; "" of the clean run."""
    if arm == CLEAN:
        return ""
    counts = {tool: len(found) for tool, found in said_by(arm, arms).items()}
    tool = max(counts, key=lambda name: counts[name])  # the earliest of the most
    if not counts[tool]:
        outside = deviating(arm, arms)
        return f"metrics alone: {outside}" if outside else "nothing"
    return f"{tool}, {WHEN[tool]}" + (
        "" if counts[tool] == len(arms[arm]) else f" ({counts[tool]} of {len(arms[arm])})"
    )


def said_by(arm: str, arms: Mapping[str, Seeds]) -> dict[str, list[list[str]]]:
    """{tool: [the subjects that it names, one list for each seed on which it names any]}, the earliest tool first."""
    said: dict[str, list[list[str]]] = {tool: [] for tool in WHEN}
    for seed, record in arms[arm].items():
        clean = arms.get(CLEAN, {}).get(seed, {}).get("findings", {})
        for tool, found in only_here(record["findings"], clean if arm != CLEAN else {}).items():
            if found:
                said[tool].append([sentence.split(":")[0] for sentence in found])
    return said


def warned(seeds: Seeds) -> str:
    """The first words of each warning, with the steps at which the seeds gave it."""
    steps: dict[str, list[int]] = {}
    for record in seeds.values():
        for step, sentence in record["warnings"]:
            subject = re.sub(r"\d[\d.]*", "n", re.split("[,:]", sentence)[0])
            steps.setdefault(subject, []).append(step)
    return "; ".join(f"{subject} ({', '.join(map(str, sorted(found)))})" for subject, found in steps.items())


def deviating(arm: str, arms: Mapping[str, Seeds]) -> str:
    """Metrics that leave the range of the clean runs on every seed, with the step from which on."""
    clean = [record["curves"] for record in arms.get(CLEAN, {}).values()]
    own = [record["curves"] for record in arms[arm].values()]
    if arm == CLEAN or not clean:
        return ""
    found = {name: leaves_at([c[name] for c in own], [c[name] for c in clean]) for name in WATCHED}
    return ", ".join(f"{name} ({step})" for name, step in found.items() if step is not None)


def leaves_at(curves: Sequence[list[float]], clean: Sequence[list[float]]) -> int | None:
    """The first step, from 1, of IN_A_ROW at which all smoothed `curves` are above, or all below, all of `clean`."""
    own, usual = by_step(curves), by_step(clean)
    apart = [
        (min(a) > max(b)) - (max(a) < min(b)) for a, b in zip(own, usual, strict=False)
    ]  # a run may have broken off
    for start, side in enumerate(apart):
        if side and apart[start : start + IN_A_ROW] == [side] * IN_A_ROW:
            return start + 1
    return None


def by_step(curves: Sequence[list[float]]) -> list[tuple[float, ...]]:
    """The smoothed values of all curves at each step that all have."""
    return list(zip(*map(smoothed, curves), strict=False))


def draw(arms: Mapping[str, Seeds], path: Path) -> None:
    """Two panels a fault, above right answers in training, below the gradient norm, each against the clean run."""
    faults = [arm for arm in arms if arm != CLEAN] or list(arms)
    columns = min(4, len(faults))
    rows = ceil(len(faults) / columns)
    size = (3.2 * columns, 4.2 * rows)
    with panels(path, 2 * rows, columns, dpi=80, figsize=size, sharex=True, sharey="row") as grid:
        for place in range(rows * columns):
            above, below = (grid[2 * (place // columns) + part][place % columns] for part in (0, 1))
            if place >= len(faults):
                above.set_visible(False)
                below.set_visible(False)
                continue
            for axes, name in ((above, "right_answers"), (below, "grad_norm")):
                if CLEAN in arms:
                    draw_mean(axes, curves_of(arms[CLEAN], name), label="clean", color="0.6")
                draw_mean(axes, curves_of(arms[faults[place]], name), label=faults[place], color="C3")
            above.set_title(fill(what(arms[faults[place]]), 36), fontsize=8)
            above.set_ylim(0, 1)
            if below.get_ylim()[1] > 0:
                below.set_yscale("log")
        for row in range(rows):
            grid[2 * row][0].set_ylabel("right answers", fontsize=8)
            grid[2 * row + 1][0].set_ylabel("gradient norm", fontsize=8)
        grid[0][0].figure.supxlabel("GRPO step", fontsize=9)
