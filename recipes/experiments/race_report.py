"""The figure and table of ours against TRL's, from their records alone. Knows what was found; trains nothing."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy

from .comparison import interval, smoothed
from .figures import panels
from .markdown import replace_section
from .mask_report import COMPARED, Seeds, paired_difference, success
from .records import Record, by_arm

HALF = 0.5  # right answers: how soon a run gets there is what a user waits for
LAST = 5  # steps at the end whose right answers are averaged


def draw_and_report(records: list[Record], *, output: Path, report: Path | None = None) -> None:
    """Write against_trl.png and .md into `output`, and the table into a marked section of `report`."""
    arms = by_arm(records)
    text = race_table(arms)
    (output / "against_trl.md").write_text(text + "\n", encoding="utf-8")
    if report is not None:
        figure = f"![right answers against seconds]({output.name}/against_trl.png)"
        replace_section(report, "against trl", f"{text}\n\n{figure}")
    draw(arms, output / "against_trl.png")


def variant_of(arm: str) -> str:
    """ "trl-slow" -> "slow"; "ours-unreliable-deadline" -> "unreliable", for that is what it is compared with."""
    return arm.split("-")[1]


def race_table(arms: Mapping[str, Seeds]) -> str:
    """What each side did in its time, and the paired difference to TRL's."""
    lines = [
        "| arm | seeds | steps in the time | seconds a step | seconds until half of the answers are right "
        f"| right answers in training, last {LAST} steps | held-out, sampled, 0-2 calls | 3 calls "
        "| minus TRL, 0-2 calls (paired) | p | stopped early by |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    variants = list(map(variant_of, arms))
    for arm in sorted(arms, key=lambda name: variants.index(variant_of(name))):
        seeds = arms[arm]
        ran = [record for record in seeds.values() if record["curves"]["clock_s"]]
        cells = [
            f"{mean(len(record['curves']['clock_s']) for record in seeds.values()):.0f}",
            f"{mean(map(seconds_a_step, ran)):.2f}" if ran else "",
            ", ".join(map(until_half, seeds.values())),
            str(interval([last_right(record) for record in ran])) if ran else "",
            *(
                str(interval([success(record, "sampled", calls) for record in seeds.values()]))
                for calls in (COMPARED, "3")
            ),
            *against_trl(arm, arms),
            "; ".join(dict.fromkeys(record["stopped_by"] for record in seeds.values() if record["stopped_by"])),
        ]
        lines.append(f"| `{arm}` | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seconds_a_step(record: Record) -> float:
    clock_s: list[float] = record["curves"]["clock_s"]
    return clock_s[-1] / len(clock_s)


def last_right(record: Record) -> float:
    return mean(record["curves"]["right_answers"][-LAST:])


def until_half(record: Record) -> str:
    """The seconds after which the smoothed share of right answers is first a half; "never" within the time."""
    curves = record["curves"]
    reached = [
        clock_s
        for clock_s, share in zip(curves["clock_s"], smoothed(curves["right_answers"]), strict=False)
        if share >= HALF
    ]
    return f"{reached[0]:.0f}" if reached else "never"


def against_trl(arm: str, arms: Mapping[str, Seeds]) -> tuple[str, str]:
    theirs = arms.get(f"trl-{variant_of(arm)}", {})
    return paired_difference(arms[arm], theirs) if arm.startswith("ours") else ("", "")


def draw(arms: Mapping[str, Seeds], path: Path) -> None:
    """One panel a variant: right answers in training against seconds; thin lines are seeds, a thick one their mean."""
    variants = list(dict.fromkeys(map(variant_of, arms)))
    with panels(path, 1, len(variants), figsize=(4 * len(variants), 3.5), sharey=True) as (row,):
        for axes, variant in zip(row, variants, strict=True):
            for arm in (arm for arm in arms if variant_of(arm) == variant):
                color = "C1" if arm.startswith("trl") else "C2" if arm.count("-") > 1 else "C0"
                draw_seeds(axes, arms[arm], arm, color=color)
            axes.set(title=variant, xlabel="seconds", ylim=(0, 1))
            axes.legend(frameon=False, loc="upper left", fontsize=8)
        row[0].set_ylabel("right answers in training")


def draw_seeds(axes: Any, seeds: Seeds, arm: str, *, color: str) -> None:
    curves = [(record["curves"]["clock_s"], smoothed(record["curves"]["right_answers"])) for record in seeds.values()]
    drawn = [(x[: len(y)], y[: len(x)]) for x, y in curves if x and y]
    if not drawn:
        return
    for x, y in drawn:
        axes.plot(x, y, color=color, lw=0.6, alpha=0.5)
    grid = numpy.linspace(max(x[0] for x, _ in drawn), min(x[-1] for x, _ in drawn), 200)
    means = numpy.mean([numpy.interp(grid, x, y) for x, y in drawn], axis=0)
    axes.plot(grid, means, color=color, label=f"{arm} ({len(seeds)} seeds)")
