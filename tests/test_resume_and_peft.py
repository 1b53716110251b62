"""What outlives a run: checkpoints after a kill, the adapter, and no environment."""

import time

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig
from transformers import Qwen3ForCausalLM

from envmask_trl import load_rollouts

from .launching import kill, start
from .resume_worker import long_trainer
from .scripted_training import PlaysRows, Room, make_trainer
from .tiny import tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def no_rooms():
    Room.made.clear()


def generations(path) -> list[str]:
    return path.read_text().splitlines()


def test_a_killed_run_goes_on_inside_its_generation_with_the_same_prompts(tmp_path):
    process = start("-m", "tests.resume_worker", str(tmp_path), "2", cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not (log := tmp_path / "killed.txt").exists() or len(generations(log)) < 3:
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "output.txt").read_text()
        time.sleep(0.1)
    kill(process)
    assert [folder.name for folder in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-3"]
    before = load_rollouts(tmp_path / "run" / "rollouts")
    assert [row["step"] for row in before] == [0] * 8 + [2] * 8

    whole = long_trainer(tmp_path / "whole", tmp_path / "whole.txt")
    whole.train()
    resumed = long_trainer(tmp_path / "run", tmp_path / "resumed.txt")
    resumed.train(resume_from_checkpoint=True)
    expected = generations(tmp_path / "whole.txt")
    assert len(set(expected)) == 4
    assert generations(tmp_path / "killed.txt") == expected[:3]
    assert generations(tmp_path / "resumed.txt") == expected[1:]  # generation 1 was not used up at step 3
    assert resumed.state.global_step == 8
    rollouts = load_rollouts(tmp_path / "run" / "rollouts")
    assert [row["step"] for row in rollouts] == [0] * 8 + [2] * 8 + [3] * 8 + [4] * 8 + [6] * 8
    assert rollouts[:16] == before


def test_a_run_resumed_between_generations_ends_with_the_same_weights(tmp_path):
    whole = long_trainer(tmp_path, tmp_path / "whole.txt", save_steps=4)
    whole.train()
    resumed = long_trainer(tmp_path, tmp_path / "resumed.txt", save_steps=4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert generations(tmp_path / "resumed.txt") == generations(tmp_path / "whole.txt")[2:]
    for expected, weight in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=0, atol=0)


def test_lora_trains_the_adapter_only_and_its_checkpoint_loads(tmp_path):
    tiny_model(tiny_tokenizer()).save_pretrained(tmp_path / "base")
    base = Qwen3ForCausalLM.from_pretrained(tmp_path / "base")
    before = {name: weight.clone() for name, weight in base.named_parameters()}
    trainer = make_trainer(
        tmp_path / "run",
        model=base,
        peft_config=LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        save_strategy="steps",
        save_steps=1,
    )
    trainer.sampler = PlaysRows(trainer)
    trainer.train()
    after = {name: weight.detach() for name, weight in trainer.model.named_parameters()}
    grown = [name for name, weight in after.items() if "lora_B" in name and weight.abs().max() > 0]
    assert len(grown) == 4  # two projections in two layers
    for name, weight in before.items():
        parts = f"base_model.model.{name}".rsplit(".", 1)
        kept = after.get(".".join(parts), after.get(f"{parts[0]}.base_layer.{parts[1]}"))
        assert torch.equal(kept, weight), name

    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-1").eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, trainer.model.eval()(ids).logits)


@pytest.mark.parametrize(
    "options", [{}, {"max_tool_calling_iterations": 1}, {"max_completion_length": 30}], ids=["answer", "cap", "room"]
)
def test_every_environment_is_closed_however_its_rollout_ends(tmp_path, options):
    trainer = make_trainer(tmp_path, **options)
    trainer.sampler = PlaysRows(trainer)
    trainer.train()
    assert [(room.opened, room.closed) for room in Room.made] == [(1, 1)] * 8


def test_every_environment_is_closed_when_a_reward_function_raises(tmp_path):
    def broken(**columns):
        raise RuntimeError("no reward today")

    trainer = make_trainer(tmp_path, reward=broken)
    trainer.sampler = PlaysRows(trainer)
    with pytest.raises(RuntimeError, match="no reward today"):
        trainer.train()
    assert [(room.opened, room.closed) for room in Room.made] == [(1, 1)] * 8


def test_environments_of_several_steps_are_each_opened_and_closed_once(tmp_path):
    trainer = long_trainer(tmp_path, tmp_path / "log.txt")
    trainer.train()
    assert [(room.opened, room.closed) for room in Room.made] == [(1, 1)] * 32
