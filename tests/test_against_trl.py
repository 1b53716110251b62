"""Ours against TRL's own loop: both sides get the same, the clock is fair, and the table says what the records say."""

import time

import pytest

from recipes.experiments.against_trl import ARMS, main
from recipes.experiments.race_report import race_table, until_half
from recipes.experiments.records import by_arm, load
from recipes.experiments.timed_training import run_race
from recipes.experiments.troubled_tools import Trouble, Waits, troubled


@pytest.fixture(scope="module")
def quick(tmp_path_factory, quick_checkpoint):
    """One variant by both sides, in two steps each."""
    folder = tmp_path_factory.mktemp("race")
    main(["--quick", "--arms", "trl-short,ours-short", "--from", str(quick_checkpoint), "--output", str(folder)])
    return folder


def test_the_quick_run_leaves_a_record_of_each_side_a_table_and_a_figure(quick):
    arms = by_arm(load(quick / "against_trl.jsonl"))
    theirs, ours = arms["trl-short"][0], arms["ours-short"][0]
    for record in (theirs, ours):
        assert {len(curve) for curve in record["curves"].values()} == {2} and not record["stopped_by"]
        assert record["on"]["processor"] and record["versions"]["trl"] and set(record["held_out"]["sampled"]) >= {"0-2"}
    assert theirs["settings"] == ours["settings"] | {"side": "trl"}
    assert "| `ours-short` | 1 | 2 |" in (quick / "against_trl.md").read_text()
    assert (quick / "against_trl.png").stat().st_size > 5_000


def test_both_sides_are_run_with_every_trouble_and_what_ours_alone_has_is_an_arm_of_its_own():
    assert {name.split("-", 1)[1] for name in ARMS if name.startswith("trl")} == {
        "plain",
        "slow",
        "unreliable",
        "short",
    }
    own = [name for name, race in ARMS.items() if race.tool_timeout_s or race.max_malformed_calls]
    assert own == ["ours-plain-once", "ours-unreliable-deadline"]


def test_a_training_that_breaks_down_is_a_record_and_no_crash(quick_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.experiments.timed_training.Clock.on_step_end", lambda *_, **__: {}["name"])
    race = ARMS["ours-short"]
    options = {"per_device_train_batch_size": 2, "num_generations": 2, "max_steps": 1}
    record = run_race(race, quick_checkpoint, seed=0, steps=1, held_out=1, folder=tmp_path, **options)
    assert record["stopped_by"] == "KeyError: 'name'" and record["held_out"]


def test_the_clock_counts_what_is_slept_and_not_what_is_computed_through():
    times = iter([0.0, 0.03, 0.03, 0.03])
    waits = Waits(cpu=lambda: next(times))
    waits.sleep(0.05)  # 0.03 s of it were computed through
    assert waits.total_s == pytest.approx(0.02)
    assert waits.now_s() == pytest.approx(0.05)


def test_nobody_waits_beyond_the_deadline_for_a_call_that_sleeps_on():
    waits = Waits(deadline_s=0.01, cpu=lambda: 0.0)
    start_s = time.perf_counter()
    waits.sleep(0.04)
    assert time.perf_counter() - start_s >= 0.04 and waits.total_s == pytest.approx(0.01)


def lamp() -> str:
    """The lamp."""
    return "on"


def test_calls_fail_and_hang_in_the_same_places_for_both_sides():
    def fates():
        waits = Waits()
        waits.sleep = slept.append
        (tool,) = troubled([lamp], Trouble(latency_s=0.05, failing=0.2, hanging=0.2), seed=3, waits=waits)
        for _ in range(40):
            try:
                yield tool(), slept[-1]
            except RuntimeError as error:
                yield str(error), slept[-1]

    slept: list[float] = []
    found = list(fates())
    assert found == list(fates())
    assert set(found) == {("on", 0.05), ("on", 2.0), ("the service is not available", 0.05)}


def record(arm, seed, clock_s, right, held_out, stopped_by=""):
    return {
        **{"arm": arm, "seed": seed, "steps": 9, "settings": {}, "stopped_by": stopped_by},
        "curves": {"clock_s": clock_s, "right_answers": right},
        "held_out": {"sampled": {"0-2": held_out, "3": 0.0}},
    }


def test_the_table_pairs_each_arm_with_trl_and_keeps_what_broke_down():
    arms = by_arm(
        [
            record("trl-slow", 0, [4.0, 8.0], [0.2, 0.2], 0.3, stopped_by="KeyError: 'name'"),
            record("ours-slow", 0, [1.0, 2.0, 3.0], [0.4, 0.6, 0.8], 0.7),
            record("ours-slow-deadline", 0, [1.0], [0.4], 0.5),
        ]
    )
    theirs, ours, hasty = race_table(arms).splitlines()[2:]
    assert theirs.endswith("| KeyError: 'name' |") and "| never |" in theirs
    assert ours.startswith("| `ours-slow` | 1 | 3 | 1.00 | 2 | 0.60 | 0.70 | 0.00 | 0.40 | 1 |")
    assert "| 0.20 | 1 |" in hasty  # compared with the same variant


def test_a_run_reaches_a_half_when_the_smoothed_curve_does():
    curve = record("trl-slow", 0, [1.0, 2.0, 3.0], [0.0, 0.9, 0.9], 0.0)
    assert until_half(curve) == "3"  # the means are 0, 0.45 and 0.6
