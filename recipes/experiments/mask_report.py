"""The mask ablation's figure and tables, from its records alone. Knows what was found; trains nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .comparison import interval, sign_flip_p
from .figures import draw_mean, panels
from .markdown import replace_section
from .records import Record, by_arm

Seeds = Mapping[int, Record]
MAIN = ("on", "off", "off-third", "off-triple")  # whose curves are drawn, if they have been run
COMPARED = "0-2"  # calls: the questions that every seed's demonstrations show


def draw_and_report(records: list[Record], *, output: Path, report: Path | None = None) -> None:
    """Write mask_ablation.png and .md into `output`, and the tables into a marked section of `report`."""
    arms = by_arm(records)
    text = "\n\n".join([success_table(arms), signal_table(arms)])
    (output / "mask_ablation.md").write_text(text + "\n", encoding="utf-8")
    if report is not None:
        replace_section(report, "mask ablation", text)
    draw(arms, output / "mask_ablation.png")


def partner(arm: str) -> str:
    """The arm with the mask, and otherwise alike, that an arm without it is compared with; at one learning rate."""
    return arm.replace("off", "on", 1).removesuffix("-third").removesuffix("-triple")


def success(record: Record, decoding: str, calls: str) -> float:
    """Held-out success; 0 where training ended in weights that sample nothing."""
    return record["held_out"][decoding][calls] if record["held_out"] else 0.0


def success_table(arms: Mapping[str, Seeds]) -> str:
    """Held-out success of each arm, and the paired test against the arm with the mask."""
    lines = [
        "| arm | seeds | sampled, 0-2 calls | sampled, 3 calls | greedy, 0-2 calls | greedy, 3 calls "
        "| minus mask on, sampled 0-2 (paired) | p |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm, seeds in arms.items():
        cells = [
            str(interval([success(record, decoding, calls) for record in seeds.values()]))
            for decoding in ("sampled", "greedy")
            for calls in (COMPARED, "3")
        ]
        lines.append(f"| `{arm}` | {len(seeds)} | {' | '.join(cells)} | {' | '.join(difference(arm, arms))} |")
    return "\n".join(lines)


def difference(arm: str, arms: Mapping[str, Seeds]) -> tuple[str, str]:
    """The mean of the seeds' differences to the partner with its interval, and p; empty without a partner."""
    return paired_difference(arms[arm], arms.get(partner(arm), {})) if arm.startswith("off") else ("", "")


def paired_difference(seeds: Seeds, others: Seeds) -> tuple[str, str]:
    """Sampled success of the seeds that both have, minus that of `others`: its mean with its interval, and p."""
    shared = sorted(set(seeds) & set(others))
    if not shared:
        return "", ""
    apart = [success(seeds[seed], "sampled", COMPARED) - success(others[seed], "sampled", COMPARED) for seed in shared]
    return str(interval(apart)), f"{sign_flip_p(apart):.3g}"


def signal_table(arms: Mapping[str, Seeds]) -> str:
    """Gradient norms, the environment's part of the unmasked gradient, and how often the model plays the tools."""
    lines = [
        "| arm | gradient norm, first 10 steps | last 10 | environment's part of the unmasked gradient, step 1 | last "
        "| cosine of masked and unmasked, last | rollouts in which the model writes observations, last 10 steps |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm, seeds in arms.items():
        records = [record for record in seeds.values() if record["steps"] and record["paired"]]
        if not records:
            continue
        cells = [
            interval([tail_mean(record["curves"]["grad_norm"][:10]) for record in records]),
            interval([tail_mean(record["curves"]["grad_norm"]) for record in records]),
            interval([record["paired"][0]["gradient"] for record in records]),
            interval([record["paired"][-1]["gradient"] for record in records]),
            interval([record["paired"][-1]["cosine"] for record in records]),
            interval([tail_mean(record["curves"]["plays_environment"]) for record in records]),
        ]
        lines.append(f"| `{arm}` | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def tail_mean(values: list[float], count: int = 10) -> float:
    tail = values[-count:]
    return sum(tail) / len(tail)


def draw(arms: Mapping[str, Seeds], path: Path) -> None:
    """Curves of right answers and gradient norms of the main arms, and held-out success of all."""
    trained = [arm for arm, seeds in arms.items() if all(record["curves"]["reward"] for record in seeds.values())]
    main_arms = [arm for arm in MAIN if arm in trained] or trained
    with panels(path, 1, 3, figsize=(13, 4)) as ((curves, norms, final),):
        for number, arm in enumerate(main_arms):
            label = f"mask {arm} ({len(arms[arm])} seeds)"
            draw_mean(curves, curves_of(arms[arm], "right_answers"), label=label, color=f"C{number}")
            draw_mean(norms, curves_of(arms[arm], "grad_norm"), label=label, color=f"C{number}")
        curves.set(title="right answers in training", xlabel="GRPO step", ylabel="share of rollouts", ylim=(0, 1))
        norms.set(title="gradient norm", xlabel="GRPO step")
        if any(any(curve) for arm in main_arms for curve in curves_of(arms[arm], "grad_norm")):
            norms.set_yscale("log")
        if main_arms:
            curves.legend(frameon=False)
        draw_success(final, arms)


def draw_success(axes: Any, arms: Mapping[str, Seeds]) -> None:
    """A bar for each arm, the first on top, with its interval."""
    names = list(arms)[::-1]
    found = [interval([success(record, "sampled", COMPARED) for record in arms[name].values()]) for name in names]
    colors = ["C0" if name.startswith("on") else "C1" if name.startswith("off") else "0.6" for name in names]
    halves = [value.half if value.half == value.half else 0.0 for value in found]
    axes.barh(names, [value.mean for value in found], xerr=halves, color=colors, error_kw={"lw": 1})
    axes.set(title="held-out success, sampled, 0 to 2 calls", xlim=(0, 1.05))


def curves_of(seeds: Seeds, name: str) -> list[list[float]]:
    return [record["curves"][name] for record in seeds.values()]
