"""The benchmarks in their smallest size: both sides play the same rollouts, and the report is written."""

import json
import random

import pytest
import torch

from recipes.benchmarks.__main__ import BENCHMARKS, main
from recipes.benchmarks.phases import cumulative_seconds
from recipes.benchmarks.policy import FREE, Script, ScriptedTurn
from recipes.benchmarks.results import Check, Figure, relative_difference, same_step
from recipes.benchmarks.trainers import Step
from recipes.benchmarks.workloads import Size, finished_rows, make_workload

PROMPT = (1, 2, 3)
EOS, PAD = 19, 0
SCRIPT = Script(
    {PROMPT: [[[10, FREE, EOS], [11, EOS], [13, EOS]], [[12, EOS]]]}, eos_id=EOS, pad_id=PAD, letters=[14, 15]
)


def choices(processor, rows):
    """The ids that each row may choose."""
    scores = processor(torch.tensor(rows), torch.zeros(len(rows), 20))
    return [[token for token, score in enumerate(row) if score > -torch.inf] for row in scores.tolist()]


def test_the_quick_run_finds_equal_results_and_writes_json_table_and_plot(tmp_path):
    results = main(list(BENCHMARKS), quick=True, repeats=0, output_dir=tmp_path)
    assert [result.letter for result in results] == list(BENCHMARKS)
    for result in results:
        for check in result.checks:
            assert check.equal, f"{result.letter}: {check}"
        assert result.figures and all(figure.value >= 0 for figure in result.figures), result  # a NaN is not
    assert all(result.checks for result in results if result.letter not in "fg")
    written = json.loads((tmp_path / "benchmarks.json").read_text())
    assert {"processor", "torch", "trl", "transformers", "repeats"} <= set(written["machine"])
    assert [result["letter"] for result in written["results"]] == list(BENCHMARKS)
    table = (tmp_path / "benchmarks.md").read_text()
    assert "| (b) | whole training step |" in table and "| >= 3 |" in table
    assert (tmp_path / "benchmarks.png").stat().st_size > 10_000


def test_a_row_may_only_choose_what_its_script_says():
    turn = ScriptedTurn(SCRIPT)
    assert choices(turn, [PROMPT, PROMPT]) == [[10], [12]]
    assert choices(turn, [(*PROMPT, 10), (*PROMPT, 12)]) == [[14, 15], [EOS]]
    assert choices(turn, [(*PROMPT, 10, 14), (*PROMPT, 12, EOS)])[0] == [EOS]


def test_a_row_is_recognised_when_its_sibling_has_left_and_rows_have_changed_places():
    turn = ScriptedTurn(SCRIPT)
    choices(turn, [PROMPT, PROMPT, PROMPT])
    assert choices(turn, [(*PROMPT, 12), (*PROMPT, 10)]) == [[EOS], [14, 15]]


def test_the_second_turn_is_played_after_an_observation():
    observed = (*PROMPT, 10, 14, EOS, 20, 21, EOS, 22)
    for padding in ((), (PAD, PAD), (PROMPT[0], PROMPT[0])):
        assert choices(ScriptedTurn(SCRIPT), [(*padding, *observed)]) == [[11]]


def test_rollouts_that_differ_are_not_equal():
    row = ((1,), (10, 11), (1, 1))
    gradients = {"weight": torch.ones(2)}
    ours, theirs = (Step(rows={row}, loss=0.5, gradients=gradients) for _ in range(2))
    assert all(check.equal for check in same_step(theirs, ours))
    ours.rows = {((1,), (10, 12), (1, 1))}
    assert [check.equal for check in same_step(theirs, ours)] == [False, True, True]
    ours.rows, ours.gradients = theirs.rows, {"weight": torch.tensor([1.0, 1.1])}
    assert relative_difference(gradients, ours.gradients) == pytest.approx(0.1 / 2**0.5)
    assert [check.equal for check in same_step(theirs, ours)] == [True, True, False]


def test_a_difference_that_is_not_a_number_is_not_equal():
    assert not Check("loss", float("nan"), 1e-5).equal


def test_a_bar_is_a_least_or_a_most():
    assert Figure("ratio", 3.0, "x", bar=3.0).reached and not Figure("ratio", 2.9, "x", bar=3.0).reached
    assert Figure("memory", 0.5, "x", bar=0.5, at_most=True).reached
    assert Figure("memory", 0.6, "x", bar=0.5, at_most=True).reached is False
    assert Figure("seconds", 1.0, "s").reached is None


def test_time_in_tools_counts_overlapping_calls_once_and_not_what_lies_beside_sampling():
    workload = make_workload(Size(rollouts=8, turns=2, prompt_tokens=60))
    workload.calls += [(0.0, 0.2), (0.1, 0.3), (1.0, 1.5)]
    assert workload.waited_s([]) == pytest.approx(0.8)
    assert workload.waited_s([(-1.0, 0.1), (1.2, 1.3)]) == pytest.approx(0.6)


def test_prompts_and_turns_have_the_size_that_was_asked_for():
    workload = make_workload(Size(rollouts=16, turns=5, prompt_tokens=300))
    rows = finished_rows(workload)
    assert len(rows["prompt_ids"]) == 16
    assert all(abs(len(ids) - 300) <= 15 for ids in rows["prompt_ids"])
    ends = [ids.count(workload.script.eos_id) for ids in rows["completion_ids"]]
    assert ends == [5 + 4] * 16, "five turns and four observations"
    assert len({tuple(ids) for ids in rows["completion_ids"]}) == 16
    assert all(len(ids) == len(mask) for ids, mask in zip(rows["completion_ids"], rows["env_mask"], strict=True))


def test_a_phase_whose_function_has_moved_is_named():
    import cProfile
    import pstats

    with cProfile.Profile() as profile:
        random.Random(0).random()
    with pytest.raises(ValueError, match=r"the step did not call .*kept_cache\.py:sample"):
        cumulative_seconds(pstats.Stats(profile))
