"""The experiment with an instruct model, on a tiny one: all phases, and a run that is stopped goes on."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from envmask_trl import load_rollouts
from recipes.experiments import instruct_model
from recipes.experiments.comparison import wilson
from recipes.experiments.instruct_report import share, table
from recipes.experiments.instruct_task import load_model, short_message, shortened
from recipes.models import quickstart_model
from recipes.weather_calculator.demonstrations import tokenizer_texts, write_demonstrations
from recipes.weather_calculator.quickstart import save
from recipes.weather_calculator.tasks import correct_answer
from recipes.weather_calculator.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on an untrained model that was stopped in the second GRPO step, and went on."""
    folder = tmp_path_factory.mktemp("instruct")
    tokenizer = train_tokenizer(tokenizer_texts(write_demonstrations(folder / "d.jsonl", tidy=60, mixed=0, seed=0)))
    save(quickstart_model(tokenizer), tokenizer, folder / "model")
    arguments = ["--quick", "--model", str(folder / "model"), "--output-dir", str(folder / "run")]
    calls = []

    def stopped(completions, answer, **columns):
        calls.append(len(completions))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return correct_answer(completions, answer)

    stopped.__name__ = "correct_answer"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instruct_model, "correct_answer", stopped)
        with pytest.raises(KeyboardInterrupt):
            instruct_model.main(arguments)
    partial = json.loads((folder / "run" / "results.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instruct_model, "warm_up", lambda *_, **__: pytest.fail("SFT was run again"))
        found = instruct_model.main(arguments)
    return folder / "run", partial, found


def test_what_was_done_before_a_stop_is_kept_and_not_done_again(run):
    folder, partial, found = run
    assert list(partial["held_out"]) == ["before SFT", "after SFT"] and list(partial["training"]) == ["SFT"]
    assert found["held_out"] | partial["held_out"] == found["held_out"]
    assert len(found["training"]["GRPO"]["right_answers"]) == 2  # the first step's is the checkpoint's
    assert {row["step"] for row in load_rollouts(folder / "grpo" / "rollouts")} == {0, 1}


def test_the_report_has_every_phase_with_intervals_and_the_rollouts_can_be_viewed(run):
    folder, _, found = run
    text = (folder / "instruct_model.md").read_text()
    assert [line.split(" | ")[0] for line in text.splitlines()[2:5]] == [f"| {phase}" for phase in found["held_out"]]
    assert " of 3 |" in text and "trl 1." in text
    assert (folder / "instruct_model.png").stat().st_size > 5_000
    assert "<html" in (folder / "held_out.html").read_text()[:200]


def test_a_folder_of_another_run_is_refused(run):
    folder, _, found = run
    model = found["settings"]["model"]
    with pytest.raises(ValueError, match="give this run another --output-dir"):
        instruct_model.main(["--quick", "--seed", "1", "--model", model, "--output-dir", str(folder)])


def test_a_tokenizer_without_chatml_is_refused(tmp_path):
    words = Tokenizer(WordLevel({"<|endoftext|>": 0, "Oslo": 1}, unk_token="<|endoftext|>"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no token <\|im_start\|>"):
        load_model(str(tmp_path))


def test_wilsons_interval_is_that_of_its_formula():
    assert wilson(0, 48) == (0.0, pytest.approx(0.0741, abs=1e-4))
    assert wilson(24, 48) == (pytest.approx(0.3639, abs=1e-4), pytest.approx(0.6361, abs=1e-4))
    low, high = wilson(48, 48)
    assert high == 1.0 and low == pytest.approx(1 - 0.0741, abs=1e-4)


def test_a_share_sums_the_questions_of_its_calls():
    assert share({"0": [1, 2], "1": [2, 2], "3": [0, 2]}, ("0", "1", "2")) == "0.75 (0.30 to 0.95) of 4"


def test_reports_keep_their_temperature_and_one_further_field():
    report = '{"city":"Oslo","wind":41,"rain":73,"temperature":27}'
    assert shortened(report) == '{"city":"Oslo","wind":41,"temperature":27}'
    assert short_message({"role": "tool", "name": "calculator", "content": "27"})["content"] == "27"
    assert short_message({"role": "tool", "name": "weather", "content": report})["content"] == shortened(report)


def test_the_table_says_what_was_run_and_on_what():
    counts = {"sampled": {"1": [1, 2], "3": [0, 2]}, "greedy": {"1": [2, 2], "3": [0, 2]}}
    on = {"processor": "cpu", "threads": 1, "cores": 2, "torch": "2", "transformers": "5", "trl": "1"}
    settings = {"model": "model", "seed": 0, "demonstrations": 8, "steps": 2}
    data = {"held_out": {"after SFT": counts}, "seconds": {"SFT": 3.0}, "on": on, "settings": settings}
    assert "| after SFT | 0.50 (0.09 to 0.91) of 2 | 0.00 (0.00 to 0.66) of 2 | 1.00" in table(data)
    assert "`model`, seed 0, 8 demonstrations, 2 GRPO steps" in table(data) and "SFT 3 s" in table(data)
