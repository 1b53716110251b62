"""The fault atlas's figure and table, from its records alone. Knows what was found; trains nothing."""

import re
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from .comparison import interval, smoothed
from .findings import only_here
from .markdown import replace_section
from .mask_report import COMPARED, Seeds, draw_curve, paired_difference, success, tail_mean
from .records import Record, by_arm

CLEAN = "clean"
WATCHED = ("grad_norm", "plays_environment", "env_token_share", "calls", "unfinished", "reward")  # what a user sees
IN_A_ROW = 5  # steps for which a metric has to stay outside, before it is said to say something
TOOLS = ("audit", "saved audit", "lint", "doctor")


def draw_and_report(records: list[Record], *, output: Path, report: Path | None = None) -> None:
    """Write fault_atlas.png and .md into `output`, and the table into a marked section of `report`."""
    arms = by_arm(records)
    text = atlas_table(arms)
    (output / "fault_atlas.md").write_text(text + "\n", encoding="utf-8")
    if report is not None:
        replace_section(report, "fault atlas", text)
    draw(arms, output / "fault_atlas.png")


def atlas_table(arms: Mapping[str, Seeds]) -> str:
    """Each fault: what became of the model, and who said so."""
    lines = [
        "| fault | seeds | held-out success, sampled, 0-2 calls | minus clean (paired) | p | gradient norm, last 10 "
        "| audit, lint, doctor (of the first step) | warnings (step) | metrics outside of the clean runs (from step) |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for arm, seeds in arms.items():
        final = str(interval([success(record, "sampled", COMPARED) for record in seeds.values()]))
        ran = [record for record in seeds.values() if record["curves"]["grad_norm"]]
        norm = str(interval([tail_mean(record["curves"]["grad_norm"]) for record in ran])) if ran else "no step"
        cells = [
            next(iter(seeds.values()))["settings"]["fault"],
            str(len(seeds)),
            final,
            *difference(seeds, arms),
            norm,
        ]
        lines.append(f"| {' | '.join([*cells, named_by(arm, arms), warned(seeds), deviating(arm, arms)])} |")
    return "\n".join(lines)


def difference(seeds: Seeds, arms: Mapping[str, Seeds]) -> tuple[str, str]:
    """The mean of the seeds' differences to the clean run with its interval, and p."""
    clean = arms.get(CLEAN, {})
    return ("", "") if seeds is clean else paired_difference(seeds, clean)


def named_by(arm: str, arms: Mapping[str, Seeds]) -> str:
    """Tools that say something of this arm which they do not say of the clean run of the same seed, and of how many."""
    counts = dict.fromkeys(TOOLS, 0)
    subjects: dict[str, dict[str, None]] = {tool: {} for tool in TOOLS}
    for seed, record in arms[arm].items():
        clean = arms.get(CLEAN, {}).get(seed, {}).get("findings", {})
        for tool, said in only_here(record["findings"], clean if arm != CLEAN else {}).items():
            counts[tool] += bool(said)
            subjects[tool] |= dict.fromkeys(sentence.split(":")[0] for sentence in said)
    seeds = len(arms[arm])
    return "; ".join(
        f"{tool} ({counts[tool]} of {seeds}): {', '.join(subjects[tool])}" for tool in TOOLS if counts[tool]
    )


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
    """One panel a fault: right answers in training, against those of the clean run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    faults = [arm for arm in arms if arm != CLEAN] or list(arms)
    columns = min(4, len(faults))
    rows = ceil(len(faults) / columns)
    figure, panels = pyplot.subplots(
        rows,
        columns,
        figsize=(3.2 * columns, 2.4 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, arm in zip(panels.flat, faults, strict=False):
        if CLEAN in arms:
            draw_curve(axes, arms[CLEAN], "right_answers", label="clean", color="0.6")
        draw_curve(axes, arms[arm], "right_answers", label=arm, color="C3")
        axes.set_title(next(iter(arms[arm].values()))["settings"]["fault"], fontsize=8, wrap=True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels.flat[len(faults) :]:
        axes.set_visible(False)
    figure.supxlabel("GRPO step", fontsize=9)
    figure.supylabel("right answers in training", fontsize=9)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
