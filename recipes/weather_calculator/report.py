"""Numbers to a table, a sentence, a curve. Knows what was played and how long it took; runs nothing."""

import json
from pathlib import Path

from ..resident_memory import peak_since_reset_mib
from .evaluate import OUTCOMES, Played, outcome_shares, success

DEMONSTRATED = (0, 1, 2)  # calls of the questions that the demonstrations show
COMPOSED = (3,)  # calls of the questions that only GRPO meets
PHASES = ("before SFT", "after SFT", "after GRPO")

Results = dict[str, dict[str, list[Played]]]  # phase -> "sampled" or "greedy" -> rollouts


def numbers(results: Results, *, seconds: dict[str, float], peak_gib: float, parameters: int, seed: int) -> dict:
    """All that the report says, ready for JSON."""
    return {
        "seed": seed,
        "parameters": parameters,
        "success": {
            phase: {decoding: success_by_calls(played) for decoding, played in by_decoding.items()}
            for phase, by_decoding in results.items()
        },
        "outcomes_sampled": {
            phase: {
                "0-2 calls": outcome_shares(by_decoding["sampled"], calls=DEMONSTRATED),
                "3 calls": outcome_shares(by_decoding["sampled"], calls=COMPOSED),
            }
            for phase, by_decoding in results.items()
        },
        "calls_per_rollout": {phase: mean_calls(by_decoding["sampled"]) for phase, by_decoding in results.items()},
        "seconds": {**seconds, "total": sum(seconds.values())},
        "peak_memory_gib": peak_gib,
    }


def success_by_calls(played: list[Played]) -> dict[str, float]:
    """{"0": 1.0, "1": 0.96, "2": 0.93, "3": 0.6, "0-2": 0.96}"""
    each = {str(calls): success(played, calls=(calls,)) for calls in (*DEMONSTRATED, *COMPOSED)}
    return each | {"0-2": success(played, calls=DEMONSTRATED)}


def mean_calls(played: list[Played]) -> float:
    return sum(rollout.calls_made for rollout in played) / len(played)


def what_grpo_changed(report: dict) -> str:
    """One sentence for the demonstrated questions, one for the composed ones, from the outcomes' shares."""
    before, after = (report["outcomes_sampled"][phase] for phase in PHASES[1:])
    demonstrated = {name: before["0-2 calls"][name] - after["0-2 calls"][name] for name in OUTCOMES if name != "right"}
    causes = sorted(((gone, name) for name, gone in demonstrated.items() if gone > 0.005), reverse=True)
    gained = after["0-2 calls"]["right"] - before["0-2 calls"]["right"]
    greedy = [report["success"][phase]["greedy"]["0-2"] for phase in PHASES[1:]]
    listed = ", ".join(f"{100 * gone:.0f} points fewer {name}" for gone, name in causes) or "no kind of failure"
    composed = [shares["3 calls"] for shares in (before, after)]
    verdict = "mostly stopped bad habits" if greedy[1] - greedy[0] < gained / 2 else "also learned the task better"
    return (
        f"On questions of 0 to 2 calls GRPO gained {100 * gained:.0f} points of sampled success ({listed}) while "
        f"greedy success went from {greedy[0]:.2f} to {greedy[1]:.2f}: there it {verdict}. "
        f"Questions of 3 calls were never demonstrated: sampled success went from {composed[0]['right']:.2f} to "
        f"{composed[1]['right']:.2f} and answers after too few calls from {composed[0]['guess']:.2f} to "
        f"{composed[1]['guess']:.2f}: what it gained there it composed itself."
    )


def table(report: dict) -> str:
    """The report's table in Markdown."""
    columns = ("0", "1", "2", "3", "0-2")
    lines = [
        "| held-out success | " + " | ".join(f"{calls} calls" for calls in columns) + " | calls per rollout |",
        "| --- |" + " ---: |" * (len(columns) + 1),
    ]
    for decoding in ("sampled", "greedy"):
        for phase in PHASES:
            row = report["success"][phase][decoding]
            calls = f"{report['calls_per_rollout'][phase]:.2f}" if decoding == "sampled" else ""
            lines.append(f"| {phase}, {decoding} | " + " | ".join(f"{row[c]:.2f}" for c in columns) + f" | {calls} |")
    lines += ["", "| phase | seconds |", "| --- | ---: |"]
    lines += [f"| {phase} | {seconds:.0f} |" for phase, seconds in report["seconds"].items()]
    lines += ["", f"{report['parameters']:,} parameters; peak memory {report['peak_memory_gib']:.2f} GiB."]
    return "\n".join(lines)


def write_report(report: dict, rewards: list[float], *, discovery_steps: int, output_dir: Path) -> None:
    """report.json, report.md and reward.png."""
    (output_dir / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    text = f"# Weather and calculator, seed {report['seed']}\n\n{table(report)}\n\n{what_grpo_changed(report)}\n"
    (output_dir / "report.md").write_text(text + "\n![reward per step](reward.png)\n", encoding="utf-8")
    draw_rewards(rewards, discovery_steps=discovery_steps, path=output_dir / "reward.png")


def draw_rewards(rewards: list[float], *, path: Path, discovery_steps: int | None = None) -> None:
    """The share of right answers in each step, and where the questions change."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(range(1, len(rewards) + 1), rewards, color="tab:blue")
    if discovery_steps is not None:
        axes.axvline(discovery_steps + 0.5, color="grey", linewidth=0.8, linestyle=":")
        axes.text(discovery_steps, 0.02, "mostly of 3 calls ", ha="right", color="grey", fontsize=8)
        axes.text(discovery_steps + 1, 0.02, " of 0 to 3 calls", ha="left", color="grey", fontsize=8)
    axes.set(xlabel="GRPO step", ylabel="share of right answers", ylim=(0, 1.02))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def peak_memory_gib() -> float:
    """The largest resident size of this process so far."""
    return peak_since_reset_mib() / 1024
