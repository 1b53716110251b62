"""(i) Slow calls beside fast ones: TRL's loop, this library's in rounds, and with rollouts that do not wait for others.

In each round the call of another one of the rollouts is slow. Whoever plays in rounds waits for all of these, one after
another; a rollout that waits only for its own waits for one or two.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

from .policy import FREE
from .results import Figure, Result, same_step, time_ratio
from .steps import GREEDY, QUICK, described
from .timing import median_spent
from .trainers import Step, make_trainer, run_step
from .workloads import WORDS, Size, Workload, make_workload

ONE_SLOW = Size(rollouts=16, turns=7, prompt_tokens=100, model="tiny", micro_batch=16, letters=(8, 24))
SLOW_S, FAST_S = 1.0, 0.01
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "trl": ("trl", {}),
    "rounds": ("ours", {"overlap_tools": False}),
    "overlapped": ("ours", {}),
}


def one_slow_tool(*, quick: bool, repeats: int) -> Result:
    """(i) Rollouts of which one has a slow call in each round."""
    workload = make_workload(QUICK.smaller(turns=3) if quick else ONE_SLOW)
    set_latencies(workload, slow_s=0.1 if quick else SLOW_S, fast_s=FAST_S)
    trainers = {side: make_trainer(kind, workload, **GREEDY, **options) for side, (kind, options) in SIDES.items()}
    steps: dict[str, list[Step]] = {side: [] for side in SIDES}
    for _ in range(repeats + 1):
        for side, trainer in trainers.items():
            steps[side].append(run_step(trainer, workload))
    spent = {side: median_spent([step.rollouts for step in taken[1:] or taken]) for side, taken in steps.items()}
    figures = [
        time_ratio("rollouts, in rounds", spent["trl"], spent["rounds"]),
        time_ratio("rollouts, overlapped", spent["trl"], spent["overlapped"]),
        Figure("rollouts, in rounds / overlapped", spent["rounds"].wall_s / spent["overlapped"].wall_s, "x"),
    ]
    theirs = steps["trl"][-1]
    checks = [check for side in ("rounds", "overlapped") for check in same_step(theirs, steps[side][-1])]
    return Result(
        "i", "one slow call in each round", figures, checks, workload=described(workload), steps=max(1, repeats)
    )


def set_latencies(workload: Workload, *, slow_s: float, fast_s: float) -> None:
    """Let one call of each round take `slow_s` and the others `fast_s` seconds."""
    slow_keys = one_key_per_round(workload)

    def lookup(key: str) -> str:
        """Look something up.

        Args:
            key: What to look up.
        """
        start = time.perf_counter()
        time.sleep(slow_s if key in slow_keys else fast_s)
        workload.calls.append((start, time.perf_counter()))
        return f"{key}: {' '.join(random.Random(key).choices(WORDS, k=6))}"

    workload.tools = [lookup]


def one_key_per_round(workload: Workload) -> Collection[str]:
    """A key for each round that is looked up only then and only once, of another rollout each time."""
    members = [turns for group in workload.script.turns.values() for turns in group]
    asked = [[key_of(workload, turn) for turn in turns[:-1]] for turns in members]
    times = Counter(key for keys in asked for key in keys)
    found: list[str] = []
    for round_ in range(workload.turns - 1):
        order = [(round_ * 5 + place) % len(asked) for place in range(len(asked))]
        found.append(next(asked[row][round_] for row in order if times[asked[row][round_]] == 1))
    return set(found)


def key_of(workload: Workload, turn: list[int]) -> str:
    """The key that a written turn looks up: what stands in quotes behind `"key": `."""
    text = str(workload.tokenizer.decode([token for token in turn if token != FREE]))
    match = re.search(r'"key": "(\d+)"', text)
    assert match is not None, f"a turn calls nothing: {text!r}"
    return match.group(1)
