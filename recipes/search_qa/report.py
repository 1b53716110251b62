"""Numbers to a table and a curve. Knows what was scored and how long it took; runs nothing."""

import json
from dataclasses import asdict
from pathlib import Path

from ..weather_calculator.report import draw_rewards
from .evaluate import Scores

NAMES = {"1": "1 hop", "2": "2 hops", "all": "all"}
Results = dict[str, dict[str, dict[str, Scores]]]  # phase -> "sampled" or "greedy" -> kind of question -> scores


def numbers(results: Results, *, seconds: dict[str, float], peak_gib: float, **facts: object) -> dict:
    """All that the report says, ready for JSON."""
    scores = {
        phase: {decoding: {kind: asdict(one) for kind, one in kinds.items()} for decoding, kinds in decodings.items()}
        for phase, decodings in results.items()
    }
    total = {"total": sum(seconds.values())}
    return {**facts, "scores": scores, "seconds": seconds | total, "peak_memory_gib": peak_gib}


def table(report: dict) -> str:
    """The report's tables in Markdown."""
    lines = [
        "| held-out questions | | EM | F1 | searches | found | answered without a search |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for phase, decodings in report["scores"].items():
        for decoding, kinds in decodings.items():
            for kind, one in kinds.items():
                found = "" if one["found"] is None else f"{one['found']:.2f}"
                lines.append(
                    f"| {phase}, {decoding} | {NAMES[kind]} | {one['em']:.2f} | {one['f1']:.2f} "
                    f"| {one['searches']:.2f} | {found} | {one['without_search']:.2f} |"
                )
    lines += ["", "| phase | seconds | CPU seconds |", "| --- | ---: | ---: |"]
    cpu = report["cpu_seconds"]
    cpu = cpu | {"total": sum(cpu.values())}
    lines += [f"| {phase} | {value:.0f} | {cpu[phase]:.0f} |" for phase, value in report["seconds"].items()]
    lines += ["", f"{report['parameters']:,} parameters; peak memory {report['peak_memory_gib']:.2f} GiB."]
    return "\n".join(lines)


def write_report(report: dict, rewards: list[float], *, output_dir: Path) -> None:
    """report.json, report.md and reward.png."""
    (output_dir / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    text = f"# Searching for answers, seed {report['seed']}\n\n{table(report)}\n"
    (output_dir / "report.md").write_text(text + "\n![exact match per step](reward.png)\n", encoding="utf-8")
    draw_rewards(rewards, path=output_dir / "reward.png")
