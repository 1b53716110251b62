"""The quickstart's path in a few steps, and the parts of it that can be wrong without anybody noticing."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from envmask_trl import load_rollouts
from recipes.models import lite, tiny
from recipes.weather_calculator.demonstrations import write_demonstrations
from recipes.weather_calculator.tasks import (
    calculate,
    correct_answer,
    make_rows,
    make_task,
    make_tools,
    needed_calls,
    steps_made,
    temperature,
)
from recipes.weather_calculator.warm_start import batches_of_like_lengths

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("quickstart")
    command = [sys.executable, "-m", "recipes.weather_calculator.quickstart", "--quick", "--output-dir", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    return folder, run.stdout


def test_it_ends_with_the_table_and_a_sentence(finished):
    _, printed = finished
    for row in ("before SFT, sampled", "after SFT, greedy", "after GRPO, sampled", "| total |", "peak memory"):
        assert row in printed
    assert "On questions of 0 to 2 calls GRPO gained" in printed and "SFT" in printed.split("| held-out")[0]


def test_it_leaves_checkpoints_that_load_rollouts_a_curve_and_a_page(finished):
    folder, _ = finished
    for name in ("sft", "model"):
        model = AutoModelForCausalLM.from_pretrained(folder / name)
        assert 200_000 < model.num_parameters() < 600_000
        assert AutoTokenizer.from_pretrained(folder / name).chat_template
    rows = load_rollouts(folder / "rollouts")
    assert len(rows) == 2 * 64 and {"needed_calls", "correct_answer"} == set(rows[0]["rewards"])
    assert (folder / "reward.png").stat().st_size > 1000 and "<html" in (folder / "rollouts.html").read_text().lower()
    assert json.loads((folder / "report.json").read_text())["seconds"]["total"] > 0
    assert json.loads((folder / "tasks.jsonl").read_text().splitlines()[0])["prompt"]


def test_three_calls_are_never_demonstrated_and_the_bad_habits_are(tmp_path):
    rows = write_demonstrations(tmp_path / "d.jsonl", tidy=200, mixed=300, seed=0)
    assert [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()] == rows
    assert max(row["calls"] for row in rows) == 2  # that the question needs
    assert {row["quality"] for row in rows} == {"tidy", "wandering", "guess", "mistaken", "broken"}
    assert {row["quality"] for row in rows[:200]} == {"tidy", "wandering"}


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_the_needed_calls_lead_to_the_answer(calls):
    rng = random.Random(calls)
    weather, calculator = make_tools("monday")
    for _ in range(20):
        task = make_task(calls, day="monday", rng=rng)
        needed = task.needed("monday")
        assert len(needed) == task.calls == calls
        results = []
        for call in needed:
            name, arguments = call.split(" ", 1)
            results.append({"weather": weather, "calculator": calculator}[name](**json.loads(arguments)))
        if task.expression is not None:
            assert results[-1] == task.answer
        elif calls:
            assert all(number in task.answer for number in (str(json.loads(r)["temperature"]) for r in results))


def test_the_rewards_pay_for_the_answer_and_for_steps_towards_it():
    (row,) = make_rows({3: 1}, day="monday", seed=1)
    calls = [
        {"function": {"name": name, "arguments": json.loads(arguments)}}
        for name, arguments in (needed.split(" ", 1) for needed in row["needed"])
    ]
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls]
    right, wrong = ({"role": "assistant", "content": text} for text in (row["answer"], "no idea"))
    completions = [[*turns, right], [*turns[:1], *turns[:1], wrong], [right], [turns[0], turns[2], wrong]]
    columns = {"answer": [row["answer"]] * 4, "needed": [row["needed"]] * 4}
    assert correct_answer(completions, **columns) == [1.0, 0.0, 1.0, 0.0]
    assert needed_calls(completions, **columns) == [1.0, 1 / 4, 0.0, 2 / 3]  # a repeated call counts once, and costs
    assert needed_calls([[*turns[:2], *turns[:2], wrong]], needed=[row["needed"]]) == [2 / 5]


def test_the_last_step_that_is_missing_is_paid_for_what_is_right_in_it():
    weather, wanted = 'weather {"city": "Oslo"}', 'calculator {"expression": "(27-13)*2"}'
    made = {wanted.replace("13", "31"): 2 / 3, wanted.replace("(27-13)*2", "27-13"): 0.0, wanted: 1.0}
    assert {call: steps_made([wanted], {call}) for call in made} == made
    assert steps_made([wanted], set(made)) == 1.0 and steps_made([wanted], set()) == 0.0
    assert steps_made([weather, wanted], {weather, wanted.replace("13", "31")}) == 1 + 2 / 3
    assert steps_made([weather, wanted], {wanted.replace("13", "31")}) == 0.0  # it was not looked up
    assert steps_made([weather], {weather.replace("Oslo", "Lima")}) == 0.0


def test_training_and_test_have_different_weather():
    assert any(temperature(city, "training 0") != temperature(city, "test 0") for city in ("Oslo", "Lima", "Rome"))


@pytest.mark.parametrize("expression", ["__import__('os')", "1/0", "2**9", "1" * 50, "(1", "a+1"])
def test_the_calculator_computes_and_does_nothing_else(expression):
    with pytest.raises(ValueError, match=r"only whole numbers|longer than|not an expression"):
        calculate(expression)
    assert calculate("(27-13)*2") == 28


def test_the_models_of_the_mission_have_their_size():
    assert tiny().num_parameters() == 532_832
    assert lite().num_parameters() == 63_912_192


def test_rows_of_a_batch_have_about_equal_lengths_and_each_row_is_in_one_batch():
    rows = [([row] * random.Random(row).randint(20, 180), []) for row in range(96)]
    batches = list(batches_of_like_lengths([rows[:32], rows[32:64], rows[64:]]))
    taken = [ids[0] for batch in batches for ids, _ in batch]
    assert [sorted(taken[start : start + 32]) for start in (0, 32, 64)] == [
        list(range(start, start + 32)) for start in (0, 32, 64)
    ]  # the order of the curriculum stays
    padded = sum(8 * max(len(ids) for ids, _ in batch) for batch in batches)
    in_order = sum(8 * max(len(ids) for ids, _ in rows[start : start + 8]) for start in range(0, 96, 8))
    assert all(len(batch) == 8 for batch in batches) and padded < 0.85 * in_order
