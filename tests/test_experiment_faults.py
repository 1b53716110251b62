"""Each planted fault of the atlas is named by the tool that the atlas says, and a run without a fault is not."""

import random
import re
from pathlib import Path

import pytest
from transformers import set_seed

import envmask_trl
from envmask_trl import ScriptedSampler
from recipes.experiments.faults import FAULTS
from recipes.experiments.findings import findings_of, only_here
from recipes.experiments.training import Plan, make_trainer
from recipes.models import quickstart_model
from recipes.weather_calculator.demonstrations import tokenizer_texts, write_demonstrations
from recipes.weather_calculator.quickstart import save
from recipes.weather_calculator.tasks import calculate, make_task
from recipes.weather_calculator.tokenizer import train_tokenizer

DAY = "training 0"  # the tools of seed 0 answer as on this day
GROUP = 4
WRONG = "0"  # no answer of these questions


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """An untrained model with a tokenizer that knows the task; its weights are larger than at the start of training.

    Attention of a new model is so even that what it sees hardly moves what it says.
    """
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(tokenizer_texts(write_demonstrations(folder / "d.jsonl", tidy=60, mixed=60, seed=0)))
    set_seed(0)
    model = quickstart_model(tokenizer)
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and "embed" not in name:
            weight.data.mul_(8)
    save(model, tokenizer, folder / "sft")
    return folder / "sft"


def questions():
    """Two questions of two calls, weather and calculator; what a weather report says is not yet the answer."""
    rng = random.Random(0)
    tasks = []
    while len(tasks) < 2:
        task = make_task(2, day=DAY, rng=rng)
        if task.expression is not None:
            tasks.append(task)
    return tasks


def turns(task, member):
    """The four rollouts of a question: solved, a wrong answer after the calls, calls the other way round, a guess."""
    weather, calculator = (
        f'<tool_call>{{"name": "{name}", "arguments": {{"{key}": "{value}"}}}}</tool_call>'
        for name, key, value in (("weather", "city", task.cities[0]), ("calculator", "expression", task.written(DAY)))
    )
    assert str(calculate(task.written(DAY))) == task.answer
    return [
        [weather, calculator, task.answer],
        [weather, calculator, WRONG],
        [calculator, weather, WRONG],
        [WRONG],
    ][member]


def found_in(plan, checkpoint, folder):
    tasks = questions()
    rows = [
        {"prompt": [{"role": "user", "content": task.question}], "answer": task.answer, "needed": task.needed(DAY)}
        for task in tasks
    ]
    trainer = make_trainer(
        plan,
        checkpoint,
        seed=0,
        rows=rows,
        folder=folder,
        per_device_train_batch_size=len(rows) * GROUP,
        num_generations=GROUP,
        max_steps=1,
        audit_first_step=True,
    )
    encode = trainer.processing_class
    trainer.sampler = ScriptedSampler(
        [
            [encode(f"{text}<|im_end|>")["input_ids"] for text in turns(task, member)]
            for task in tasks
            for member in range(GROUP)
        ],
        logprobs=False,
    )
    return findings_of(trainer, rows)


@pytest.fixture(scope="module")
def clean(checkpoint, tmp_path_factory):
    return found_in(Plan(), checkpoint, tmp_path_factory.mktemp("clean"))


def test_without_a_fault_audit_and_doctor_say_nothing(clean):
    assert clean["audit"] == clean["saved audit"] == clean["doctor"] == []


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_by_the_tool_that_the_atlas_says(name, checkpoint, clean, tmp_path):
    fault = FAULTS[name]
    found = only_here(found_in(fault.plan, checkpoint, tmp_path), clean)
    assert any(fault.says in sentence for sentence in found[fault.named_by]), found


def test_results_that_reach_other_rollouts_are_noted_by_the_audit_too(checkpoint, tmp_path):
    found = found_in(FAULTS["order"].plan, checkpoint, tmp_path)
    assert any("equal calls got different results" in sentence for sentence in found["audit"]), found


def test_no_fault_can_be_reached_from_an_option_of_the_trainer():
    """But the one that exists for ablation; the others are trainers, templates and rewards of their own."""
    options = {option for fault in FAULTS.values() for option in fault.plan.options}
    assert options == {"mask_env_tokens", "shared_prefix", "reward_weights", "overlap_tools"}
    for name, fault in FAULTS.items():
        own = (fault.plan.trainer_class.__module__, fault.plan.rewards[0].__module__)
        assert name == "off" or "recipes.experiments.faults" in own, name
    package = Path(envmask_trl.__file__).parent
    assert not [
        path for path in package.rglob("*.py") if re.search(r"^\s*(from|import) recipes\b", path.read_text(), re.M)
    ]
