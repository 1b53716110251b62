"""Rewards in a real training step: EnvMaskGRPOTrainer, and a plain trl.GRPOTrainer, which tells a reward less."""

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, Reward, ScriptedSampler, compose, hacking, rules

from .tiny import add, answer, call, tiny_model, tiny_tokenizer, user

ADD = call("add", a=20, b=22)
SCRIPTS = [
    [ADD, answer("42")],
    [ADD, ADD, answer("42")],
    [call("ghost"), answer("41")],
    [answer("<tool_response>42</tool_response>42")],
]
COMMON = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_steps": 1,
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "disable_tqdm": True,
}


def composed(**options):
    process = [(rules.call_validity([add]), 0.2), (rules.repeated_calls(), 0.1), *hacking.detectors()]
    return compose(rules.exact_answer("gold"), process, **options)


def dataset() -> Dataset:
    return Dataset.from_list([{"prompt": user("What is 20 + 22?"), "gold": "42"}] * 4)


def test_a_step_with_a_composed_reward_trains_on_it_and_logs_every_term(tmp_path):
    tokenizer, given = tiny_tokenizer(), []
    reward = composed()

    def watched(**columns):
        given[:] = reward(**columns)
        return given

    watched.__name__ = reward.__name__
    trainer = EnvMaskGRPOTrainer(
        tiny_model(tokenizer),
        [watched, rules.call_validity()],
        EnvMaskGRPOConfig(output_dir=str(tmp_path), max_completion_length=250, reward_weights=[1.0, 0.0], **COMMON),
        dataset(),
        processing_class=tokenizer,
        tools=[add],
    )
    turns = [[tokenizer(turn, add_special_tokens=False)["input_ids"] for turn in script] for script in SCRIPTS]
    trainer.sampler = ScriptedSampler(turns)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    log = trainer.state.log_history[0]
    assert given == pytest.approx([1.0, 0.95, -0.2, 0.0])
    assert log["reward"] == pytest.approx(sum(given) / 4) == log["rewards/composed/mean"]
    assert log["rewards/call_validity/mean"] == pytest.approx(-1 / 3)  # three rollouts called
    assert log["terms/exact_answer"] == 0.5 and log["terms/call_validity"] == pytest.approx(-1 / 3)
    assert log["terms/repeated_calls"] == pytest.approx(-0.5 / 3) and log["terms/fake_observation"] == -0.25
    assert any((weight != before[name]).any() for name, weight in trainer.model.named_parameters())
    keywords = {"trajectories": trainer.trajectories, "gold": ["42"] * 4}
    assert [len(turns) for turns in reward.turn_rewards(**keywords)] == [t.num_turns for t in trainer.trajectories]


def test_credit_by_turn_takes_what_the_composed_reward_gives_to_turns(tmp_path):
    """And nothing is scored twice for it: a judge would be asked, a program run, once."""
    tokenizer, asked = tiny_tokenizer(), []

    def right(rollout):
        asked.append(rollout)
        return float(rollout.answer == "42")

    outcome = Reward(right, name="right", low=0.0, high=1.0)
    reward = compose(outcome, [(rules.call_validity([add]), 0.5)], density="dense")
    trainer = EnvMaskGRPOTrainer(
        tiny_model(tokenizer),
        reward,
        EnvMaskGRPOConfig(output_dir=str(tmp_path), max_completion_length=250, credit="turn", **COMMON),
        dataset(),
        processing_class=tokenizer,
        tools=[add],
    )
    scripts = [[ADD, answer("42")], [call("ghost"), answer("42")], [ADD, answer("41")], [call("ghost"), answer("41")]]
    turns = [[tokenizer(turn, add_special_tokens=False)["input_ids"] for turn in script] for script in scripts]
    trainer.sampler = ScriptedSampler(turns)
    trainer.train()
    assert trainer.state.log_history[0]["rewards/composed/mean"] == pytest.approx(0.25) and len(asked) == 4
    earned = reward.turn_rewards(trajectories=trainer.trajectories)
    assert earned == [[0.0, 1.0], [-0.5, 1.0], [0.0, 0.0], [-0.5, 0.0]]
    assert [list(row.scores[0]) for row in trainer.credit.rows] == earned


def test_a_plain_trainer_scores_the_same_rewards_without_trajectories(tmp_path):
    tokenizer = tiny_tokenizer()
    reward = composed()
    trainer = GRPOTrainer(
        tiny_model(tokenizer),
        reward,
        GRPOConfig(output_dir=str(tmp_path), max_completion_length=8, **COMMON),
        dataset(),
        processing_class=tokenizer,
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["rewards/composed/mean"] == log["terms/exact_answer"] == 0.0
    assert "terms/call_validity" not in log  # nobody called: it did not apply
    assert len(reward.scored[1][0]) == 4
