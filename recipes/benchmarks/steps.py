"""Training steps of both sides in turn, and what of them is compared. Knows workloads: no files, no plots."""

from collections.abc import Callable
from statistics import median
from typing import Any

from .quickstart_workload import make_quickstart_workload
from .results import Check, Figure, Result, lines, ratio, same_step, time_ratio
from .timing import Spent, median_spent
from .trainers import SIDES, Step, make_trainer, run_step
from .workloads import GROUP, Size, Workload, finished_rows, make_workload

Steps = dict[str, list[Step]]
Series = dict[str, list[list[float]]]
GREEDY: dict[str, Any] = {"generation_kwargs": {"do_sample": False, "top_k": None}}
BASE = Size()
LONG = Size(prompt_tokens=1_500, turns=4, model="vocabulary", micro_batch=8, letters=(4, 40))
SLOW_TOOLS = Size(turns=4, prompt_tokens=100, model="tiny", latency_s=0.2, letters=(2, 8))
MANY_TURNS = Size(rollouts=16, turns=33, micro_batch=16, letters=(16, 24), model="tiny")
QUICK = Size(rollouts=GROUP, turns=2, prompt_tokens=60, model="toy", micro_batch=GROUP, letters=(2, 5))


def alternate(
    workload: Workload, *, repeats: int, rollout_func: Callable[..., Any] | None = None, in_rounds: bool = False
) -> Steps:
    """`repeats` steps of each side, one after the other, after one of each that is not counted.

    Args:
        repeats: with 0, the first ones count.
        in_rounds: one `generate` call is one turn of every rollout on our side too.
    """
    own: dict[str, dict[str, Any]] = {"trl": {}, "ours": {"overlap_tools": not in_rounds}}
    trainers = {side: make_trainer(side, workload, rollout_func=rollout_func, **GREEDY, **own[side]) for side in SIDES}
    steps: Steps = {side: [] for side in SIDES}
    for _ in range(repeats + 1):
        for side in SIDES:
            if steps[side]:  # only the latest is compared: forget the others' tensors
                steps[side][-1].gradients, steps[side][-1].micro_batches = {}, []
            steps[side].append(run_step(trainers[side], workload))
    return {side: taken[1:] or taken for side, taken in steps.items()}


def medians(steps: Steps, name: str) -> tuple[float, float]:
    theirs, ours = (median(getattr(step, name) for step in steps[side]) for side in SIDES)
    return theirs, ours


def median_times(steps: Steps, name: str) -> tuple[Spent, Spent]:
    theirs, ours = (median_spent([getattr(step, name) for step in steps[side]]) for side in SIDES)
    return theirs, ours


def latest_checks(steps: Steps) -> list[Check]:
    return same_step(steps["trl"][-1], steps["ours"][-1])


def described(workload: Workload) -> dict[str, Any]:
    """The sizes of a workload as they came out."""
    rows = finished_rows(workload)
    return {
        "model": workload.model,
        "rollouts": workload.rollouts,
        "turns": workload.turns,
        "micro_batch": workload.micro_batch,
        "mean_prompt_tokens": sum(map(len, rows["prompt_ids"])) / workload.rollouts,
        "mean_completion_tokens": sum(map(len, rows["completion_ids"])) / workload.rollouts,
        "model_token_share": sum(map(sum, rows["env_mask"])) / sum(map(len, rows["env_mask"])),
    }


def result(
    letter: str, title: str, figures: list[Figure], steps: Steps, workload: Workload, series: Series | None = None
) -> Result:
    """What was found in these steps, and that both sides did the same in them."""
    return Result(
        letter, title, figures, latest_checks(steps), series or {}, described(workload), steps=len(steps["ours"])
    )


def loss_figures(steps: Steps, *, bar: float | None) -> list[Figure]:
    tokens = ratio("tokens forwarded for the loss", *medians(steps, "loss_tokens"))
    loss = time_ratio("forward + backward of the loss", *median_times(steps, "loss_part"), bar=bar)
    return [loss, tokens, Figure("ratio of the loss / ratio of its tokens", loss.value / tokens.value, "x", bar=0.8)]


def quickstart_step(*, quick: bool, repeats: int) -> Result:
    """(a) The quickstart's whole training step."""
    workload = make_quickstart_workload({0: 1, 2: 1}) if quick else make_quickstart_workload()
    steps = alternate(workload, repeats=repeats)
    figures = [
        time_ratio("whole training step", *median_times(steps, "whole"), bar=2.0),
        time_ratio("rollouts", *median_times(steps, "rollouts")),
        *loss_figures(steps, bar=None)[:2],
    ]
    return result("a", "the quickstart's step", figures, steps, workload)


def tools_step(*, quick: bool, repeats: int) -> Result:
    """(b) A step with a tools prompt: whole, rollouts only, loss only."""
    workload = make_workload(QUICK if quick else BASE)
    steps = alternate(workload, repeats=repeats)
    figures = [
        time_ratio("whole training step", *median_times(steps, "whole"), bar=3.0),
        time_ratio("rollouts only", *median_times(steps, "rollouts"), bar=3.0),
        *loss_figures(steps, bar=2.0),
    ]
    return result("b", "tools prompt, 6 turns", figures, steps, workload)


def long_loss(*, quick: bool, repeats: int) -> Result:
    """(c) The loss with a long prompt and a large vocabulary; the rollouts are given."""
    workload = make_workload(QUICK if quick else LONG)
    steps = alternate(workload, repeats=repeats, rollout_func=given(workload))
    figures = loss_figures(steps, bar=5.0)
    return result("c", "long prompt, large vocabulary", figures, steps, workload)


def given(workload: Workload) -> Callable[..., dict[str, Any]]:
    """A `rollout_func` that plays nothing: every call gets the workload's finished rows."""

    def rollouts(prompts: list, trainer: Any) -> dict[str, Any]:
        return finished_rows(workload) | {"logprobs": None}

    return rollouts


def slow_tools(*, quick: bool, repeats: int) -> Result:
    """(d) Seconds in which a tool ran and nothing was sampled: 3 rounds of calls."""
    size = QUICK.smaller(turns=3, latency_s=0.02) if quick else SLOW_TOOLS
    workload = make_workload(size)
    steps = alternate(workload, repeats=repeats)
    theirs, ours = medians(steps, "tool_s")
    figures = [
        Figure("time in tools", ours, "s", theirs, ours, bar=2 * size.latency_s * (size.turns - 1), at_most=True),
        ratio("time in tools", theirs, ours),
    ]
    return result("d", "slow tools", figures, steps, workload)


def many_turns(*, quick: bool, repeats: int) -> Result:
    """(e) The time of turn t against t; the last one, which calls nothing and is shorter, is left out."""
    workload = make_workload(QUICK.smaller(turns=4) if quick else MANY_TURNS)
    steps = alternate(workload, repeats=repeats, in_rounds=True)
    turn_s = {
        side: [median(times) for times in zip(*(step.turn_s[:-1] for step in steps[side]), strict=True)]
        for side in SIDES
    }
    grown = {side: times[-1] / times[1] for side, times in turn_s.items()}
    name = f"time of turn {workload.turns - 1} / time of turn 2"
    figures = [Figure(name, grown["ours"], "x", grown["trl"], grown["ours"], bar=1.5, at_most=True)]
    series = {f"turn, {side}": lines(list(enumerate(times, start=1))) for side, times in turn_s.items()}
    return result("e", "time of turn t", figures, steps, workload, series)


def growth(*, quick: bool, repeats: int) -> Result:
    """(h) Whole steps over the number of rollouts, of turns, and the length of the prompt."""
    base = (
        QUICK.smaller(turns=1) if quick else Size(rollouts=16, turns=4, model="tiny", micro_batch=16, letters=(8, 24))
    )
    points = {
        "rollouts": (16,) if quick else (16, 64, 256),
        "turns": (2,) if quick else (1, 4, 16, 32),
        "prompt_tokens": (90,) if quick else (100, 300, 1_000, 3_000),
    }
    figures: list[Figure] = []
    checks: list[Check] = []
    series: Series = {}
    for name, values in points.items():
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        for value in values:
            size = base.smaller(**{name: value})
            steps = alternate(make_workload(size.smaller(micro_batch=size.rollouts)), repeats=repeats)
            times = median_times(steps, "whole")
            for side, taken in zip(SIDES, times, strict=True):
                found[side].append((value, taken.wall_s))
            figures.append(time_ratio(f"whole step, {name} {value}", *times))
            checks += latest_checks(steps)
        series |= {f"{name}, {side}": lines(points) for side, points in found.items()}
    return Result("h", "growth", figures, checks, series, steps=max(1, repeats))
