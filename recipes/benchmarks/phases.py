"""(g) The share of each phase in our training step, from a profile. Knows where in the code a phase stands.

The profiler makes Python dearer than it is and leaves tensor work alone: the bookkeeping's share is an upper bound.
"""

import cProfile
import pstats

from .results import Figure, Result
from .steps import BASE, GREEDY, QUICK, described
from .trainers import make_trainer, run_step
from .workloads import make_workload

BOOKKEEPING = "mask, pack, align, metrics"
READING, STARTING = "rollout/turn_loop.py:take_turn", "rollout/waves.py:set_to_work"  # while others are sampled
PHASES = {  # phase -> functions that are it, as ends of file names with a function
    "sampling": ["rollout/kept_cache.py:sample"],
    "tools": ["rollout/waves.py:collect", STARTING],  # as far as rollouts wait for them
    "reading calls, writing observations": [READING, "rollout/turn_loop.py:show_results"],
    BOOKKEEPING: [
        "training/rows.py:to_columns",
        "training/rows.py:trl_rows",
        "envmask_trl/packing.py:pack_rollouts",
        "training/step_log.py:rollouts",
        "training/step_log.py:rewards",
        "training/trainer.py:prepare_windows",
        "training/loss_inputs.py:apply_mask",
    ],
    "laying out trees": ["training/shared_prefix.py:of"],
    "saving rollouts": ["training/trainer.py:after_scoring"],
    "forward of the loss": ["training/trainer.py:compute_loss"],
    "backward": ["accelerate/accelerator.py:backward"],
    "optimizer": ["accelerate/optimizer.py:step"],
}


def phase_shares(*, quick: bool, repeats: int) -> Result:
    """(g) Phases of our step of (b)."""
    workload = make_workload(QUICK if quick else BASE)
    trainer = make_trainer("ours", workload, **GREEDY)
    run_step(trainer, workload)
    with cProfile.Profile() as profile:
        step = run_step(trainer, workload)
    spent = cumulative_seconds(pstats.Stats(profile))
    seconds = {phase: sum(spent.get(name, 0.0) for name in names) for phase, names in PHASES.items()}
    seconds["sampling"] -= spent[READING] + spent[STARTING]
    seconds["forward of the loss"] -= seconds["laying out trees"] + spent["training/loss_inputs.py:apply_mask"]
    seconds["all else"] = step.whole.wall_s - sum(seconds.values())
    figures = [
        Figure(phase, taken / step.whole.wall_s, "of the step", ours=taken, **bar_of(phase))
        for phase, taken in seconds.items()
    ]
    return Result("g", "phases of our step", figures, workload=described(workload))


def bar_of(phase: str) -> dict:
    return {"bar": 0.02, "at_most": True} if phase == BOOKKEEPING else {}


def cumulative_seconds(stats: pstats.Stats) -> dict[str, float]:
    """Seconds in each function of `PHASES` and all it calls.

    Raises:
        ValueError: a function was not called, so the code has moved.
    """
    spent: dict[str, float] = {}
    wanted = {name for names in PHASES.values() for name in names}
    for (file, _, function), (_, _, _, seconds, _) in stats.stats.items():  # type: ignore[attr-defined]
        for name in wanted:
            if f"{file}:{function}".endswith(f"/{name}"):
                spent[name] = spent.get(name, 0.0) + seconds
    if missing := sorted(wanted - set(spent)):
        raise ValueError(f"the step did not call {', '.join(missing)}; PHASES names functions that have moved")
    return spent
