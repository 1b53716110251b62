"""The fault atlas's records, and what its table reads out of them."""

import pytest

from recipes.experiments.atlas_report import WATCHED, atlas_table, first_named, leaves_at, named_by, outcome_table
from recipes.experiments.fault_atlas import main
from recipes.experiments.faults import CALL, shorter_once_answered
from recipes.experiments.findings import only_here
from recipes.experiments.records import by_arm, load
from recipes.weather_calculator.tokenizer import CHAT_TEMPLATE


@pytest.fixture(scope="module")
def quick(tmp_path_factory, quick_checkpoint):
    """The clean run and one fault, in two steps each."""
    folder = tmp_path_factory.mktemp("atlas")
    main(["--quick", "--arms", "clean,inverted", "--from", str(quick_checkpoint), "--output", str(folder)])
    return folder


def test_the_quick_run_leaves_records_a_table_that_names_the_fault_and_a_figure(quick):
    arms = by_arm(load(quick / "fault_atlas.jsonl"))
    assert {len(seeds[0]["curves"]["grad_norm"]) for seeds in arms.values()} == {2}
    table = (quick / "fault_atlas.md").read_text()
    outcome, named = [line for line in table.splitlines() if line.startswith("| mask inverted")]
    assert "audit (1 of 1): environment tokens are not learned, tokens of the model are learned" in named
    assert "| audit, before the first update |" in named and outcome.startswith("| mask inverted | 1 |")
    assert (quick / "fault_atlas.png").stat().st_size > 5_000


def test_what_is_said_of_the_clean_run_too_names_no_fault():
    clean = {"audit": [], "lint": ["ends-in-call: 3 of 32 rollouts"]}
    found = {
        "audit": ["observations are seen: no"],
        "lint": ["ends-in-call: 5 of 32 rollouts", "ids: 2 of 32 rollouts"],
    }
    assert only_here(found, clean) == {"audit": ["observations are seen: no"], "lint": ["ids: 2 of 32 rollouts"]}


def record(arm, seed, findings):
    curves = {name: [0.5] for name in (*WATCHED, "right_answers")}
    held_out = {"sampled": {"0-2": 0.5}, "greedy": {"0-2": 0.5}}
    return {
        **{"arm": arm, "seed": seed, "steps": 1, "settings": {"fault": arm}, "curves": curves, "held_out": held_out},
        **{"findings": findings, "warnings": [[7, "in 3 of 64 rollouts the model writes observations itself, which"]]},
    }


def test_a_tool_is_counted_on_the_seeds_on_which_it_says_something():
    arms = by_arm(
        [
            record("clean", 0, {"lint": ["content: 1 of 32"]}),
            record("clean", 1, {}),
            record("order", 0, {"lint": ["content: 2 of 32"]}),
            record("order", 1, {"lint": ["ids: 2 of 32"]}),
        ]
    )
    assert named_by("order", arms) == "lint (1 of 2): ids"
    assert first_named("order", arms) == "lint, from the first step's rollouts (1 of 2)"
    assert "in n of n rollouts the model writes observations itself (7, 7)" in atlas_table(arms)


def test_the_earliest_tool_that_speaks_on_every_seed_is_named_first_and_silence_is_said():
    half = {"doctor": ["last-turn branch: 1"], "audit": ["seen: no"], "lint": ["ids: 2 of 32"]}
    rows = [record(arm, seed, {}) for arm in ("clean", "quiet") for seed in (0, 1)]
    rows += [record("half", 0, half), record("half", 1, {"audit": ["seen: no"], "lint": ["ids: 1 of 32"]})]
    arms = by_arm(rows)
    assert first_named("half", arms) == "audit, before the first update"
    assert first_named("quiet", arms) == "nothing" and first_named("clean", arms) == ""
    broken = record("half", 0, {}) | {"curves": {name: [] for name in (*WATCHED, "right_answers")}, "held_out": {}}
    assert "| half | 1 | no step | 0.00 |" in outcome_table(by_arm([broken]))


def test_a_metric_says_something_once_it_stays_outside_of_the_clean_runs():
    clean = [[0.0] * 12, [1.0] * 12]
    assert leaves_at([[0.5] * 12], clean) is None
    assert leaves_at([[9.0] * 12, [0.5] * 12], clean) is None  # one of two seeds
    assert leaves_at([[0.5] * 4 + [9.0] * 8], clean) == 5
    assert leaves_at([[0.5] * 10 + [9.0] * 2], clean) is None  # not for long enough


def test_the_template_of_the_drift_shows_a_call_without_its_json_only_once_it_is_answered():
    changed = shorter_once_answered(CHAT_TEMPLATE)
    assert changed.count(CALL) == 1 and changed.count("if not loop_message.last else") == 1
