"""Rewards in a real training step: EnvMaskGRPOTrainer, and a plain trl.GRPOTrainer, which tells a reward less."""

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, Reward, ScriptedSampler, compose, hacking, rules
from envmask_trl.training.reward_checks import check_groups

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


@pytest.fixture(scope="module")
def returning(tmp_path_factory):
    """A trainer with two reward functions, the second an async one, that return what stands in `values`."""
    values = {"now": [0.0, 0.0], "later": [0.0, 0.0]}

    def now(**columns):
        return values["now"]

    async def later(**columns):
        return values["later"]

    tokenizer = tiny_tokenizer()
    config = EnvMaskGRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("returning")), **COMMON | {"num_generations": 2}, max_completion_length=8
    )
    rows = dataset().select(range(2))
    trainer = EnvMaskGRPOTrainer(tiny_model(tokenizer), [now, later], config, rows, processing_class=tokenizer)

    def ask(**given):
        values.update({"now": [0.0, 0.0], "later": [0.0, 0.0]} | given)
        completions = [[{"role": "assistant", "content": "42"}]] * 2
        return trainer._calculate_rewards(list(rows), [row["prompt"] for row in rows], completions, [[5], [5]])

    return ask


@pytest.mark.parametrize("function", ["now", "later"])
@pytest.mark.parametrize(
    ("values", "found"),
    [
        (None, "returned None, expected a list with one number, or None, for each of 2 rollouts"),
        ([1.0], "returned 1 values, expected a list"),
        ([1.0, 2.0, 3.0], "returned 3 values, expected a list"),
        (["1", "2"], "gave rollout 0 the str '1', expected a number"),
        ("12", "returned the str '12', expected a list"),
        (torch.ones(2, 2), "gave rollout 0 the Tensor tensor([1., 1.]), expected a number"),
        (torch.tensor(1.0), "returned the Tensor tensor(1.), expected a list"),
        (0.5, "returned the float 0.5, expected a list"),
        ([[1.0], [1.0]], "gave rollout 0 the list [1.0], expected a number"),
    ],
    ids=str,
)
def test_a_reward_function_that_returns_no_list_of_numbers_is_named_by_the_trainer(returning, function, values, found):
    with pytest.raises(ValueError) as error:
        returning(**{function: values})
    assert str(error.value).startswith(f"reward function '{function}' {found}")


@pytest.mark.parametrize("values", [[None, 1.0], (True, 1), torch.tensor([0.5, 1.0]), [torch.tensor(0.5), 1]], ids=str)
def test_numbers_and_none_for_a_rollout_are_what_a_trainer_takes(returning, values):
    expected = [float("nan") if value is None else float(value) for value in values]
    for column, function in enumerate(("now", "later")):
        assert returning(**{function: values})[:, column].tolist() == pytest.approx(expected, nan_ok=True)


def test_groups_are_counted_over_all_processes_and_none_is_asked_for_more_than_its_prompt():
    rows = [{"prompt": prompt, "seed": seed} for seed, prompt in enumerate("aaabbb")]
    check_groups(rows, group_size=3, first=0)
    check_groups(rows[1:], group_size=3, first=1)
    for wrong in ({"group_size": 3, "first": 1}, {"group_size": 2, "first": 0}, {"group_size": 6, "first": 0}):
        with pytest.raises(ValueError, match="P1 P1 P2 P2, not P1 P2 P1 P2"):
            check_groups(rows, **wrong)
