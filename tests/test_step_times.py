"""Seconds per phase: what they add up."""

import time

import pytest

from envmask_trl import ScriptedSampler, run_rollouts
from envmask_trl.training.step_times import PHASES, StepTimes

from .scripted_training import PlaysRows, make_trainer
from .tiny import add, answer, call, tiny_tokenizer, user


def test_seconds_are_per_optimizer_step_and_start_again_when_they_were_logged():
    times = StepTimes()
    for _ in range(2):
        with times.phase("tools"):
            time.sleep(0.05)
    with pytest.raises(ValueError), times.phase("rewards"):
        raise ValueError
    metrics = times.metrics(steps=2)
    assert 0.05 <= metrics["env_mask/time/tools_s"] < 0.5 and metrics["env_mask/time/rewards_s"] < 0.05
    assert "env_mask/time/loss_s" not in metrics and times.metrics(steps=1) == {}


def test_each_part_of_a_round_is_opened_once_a_round():
    times, opened = StepTimes(), []

    def phase(name):
        opened.append(name)
        return times.phase(name)

    tokenizer = tiny_tokenizer()
    script = [tokenizer(turn)["input_ids"] for turn in (call("add", a=1, b=2), answer("3"))]
    run_rollouts([user("row 1")], tokenizer=tokenizer, sampler=ScriptedSampler([script]), tools=[add], phase=phase)
    assert opened == ["sampling", "tools", "observations", "sampling", "tools"]


def test_a_run_logs_the_seconds_of_every_phase(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.sampler = PlaysRows(trainer)
    trainer.train()
    log = trainer.state.log_history[0]
    seconds = {name: log[f"env_mask/time/{name}_s"] for name in PHASES}
    assert all(value > 0 for value in seconds.values()) and sum(seconds.values()) < log["step_time"]
