"""TRL's environments and rollout functions run unchanged, and what they return is checked."""

from collections import Counter
from typing import ClassVar

import pytest
from datasets import Dataset
from trl import GRPOConfig, chat_template_utils

from envmask_trl import (
    EnvMaskGRPOConfig,
    EnvMaskGRPOTrainer,
    RolloutAborted,
    StopReason,
    load_rollouts,
)

from .tiny import answer, call, tiny_model, tiny_tokenizer, user
from .trained_scripts import CALL_AND_ANSWER, logged, make_trainer


class Counter2:
    """An environment as TRL's documentation has them: no close, its own reward."""

    def reset(self, **row) -> str:
        self.total = 0
        return " Count."

    def add(self, a: int, b: int) -> str:
        """Add two numbers to the total.

        Args:
            a: A number.
            b: Another number.
        """
        self.total += a + b
        return str(self.total)

    def get_reward(self) -> float:
        return float(self.total)


@pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning")
def test_a_script_with_an_environment_factory_runs_with_only_the_import_changed(tmp_path):
    scripts = [[call("add", a=n, b=n), answer("ok")] for n in range(4)]
    trainer = make_trainer(tmp_path, None, scripts, tools=None, environment_factory=Counter2, config=GRPOConfig)
    trainer.train()
    assert logged(trainer)["rewards/Counter2/mean"] == 3.0  # 0, 2, 4, 6: each rollout has its own instance
    assert load_rollouts(tmp_path / "rollouts")[0]["prompt"][-1]["content"].endswith(" Count.")


class Closing(Counter2):
    lives: ClassVar[Counter] = Counter()

    def __init__(self):
        self.lives["opened"] += 1

    def close(self) -> None:
        self.lives["closed"] += 1


@pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning")
@pytest.mark.parametrize("fails", [False, True])
def test_environments_with_a_close_are_closed_once_each_and_close_is_no_tool(fails, tmp_path):
    """Also when a reward function raises in the middle."""
    Closing.lives.clear()

    def reward(completions, **_):
        if fails:
            raise RuntimeError("reward broke")
        return [0.0] * len(completions)

    scripts = [[call("add", a=1, b=1), answer("ok")]] * 4
    trainer = make_trainer(tmp_path, reward, scripts, tools=None, environment_factory=Closing, max_steps=2)
    assert [tool.__name__ for tool in trainer.tools] == ["add"]
    if fails:
        with pytest.raises(RuntimeError, match="reward broke"):
            trainer.train()
    else:
        trainer.train()
    assert Closing.lives["opened"] == Closing.lives["closed"] >= 4


def test_an_infrastructure_error_ends_the_rollout_and_not_the_training(tmp_path):
    def add(a: int, b: int) -> str:
        """The sum.

        Args:
            a: A number.
            b: Another number.
        """
        raise RolloutAborted("no machine")

    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0] * 4, [[call("add", a=1, b=1)]] * 4, tools=[add])
    trainer.train()
    assert logged(trainer)["env_mask/stop/env_error"] == 1.0


def test_rollouts_are_written_down_step_by_step(tmp_path):
    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0, 1.0, 2.0, 3.0], [CALL_AND_ANSWER] * 4, max_steps=2)
    trainer.train()
    rows = load_rollouts(tmp_path / "rollouts")
    assert [row["step"] for row in rows] == [0] * 4 + [1] * 4
    first = rows[3]
    assert list(first["rewards"].values()) == [3.0] and first["advantage"] > 0
    assert len(first["completion_ids"]) == len(first["env_mask"]) == len(first["sources"]) == len(first["turn_index"])
    assert first["tool_results"][0]["content"] == "3" and first["stop_reason"] == "answered"


def rollout(prompts, trainer, **columns):
    size = len(prompts)
    base = {
        "prompt_ids": [[1, 2]] * size,
        "completion_ids": [[10, 20, 11]] * size,
        "logprobs": [[-0.1, 0.0, -0.2]] * size,
    }
    return {**base, "env_mask": [[1, 0, 1]] * size, **columns}


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
def test_a_rollout_function_is_called_and_its_mask_is_used(tmp_path):
    """I-105."""
    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0, 1.0, 0.0, 1.0], tools=None, rollout_func=rollout)
    batches = []
    trainer.after_scoring = batches.append
    trainer.train()
    assert (batches[0]["completion_mask"] * batches[0]["tool_mask"]).tolist() == [[1, 0, 1]] * 4


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"env_mask": [[1, 0, 1], [1], [1, 0, 1], [1, 0, 1]]}, "row 1: env_mask has 1 values but completion_ids has 3"),
        ({"env_mask": [[1]] * 4}, "row 0: env_mask has 1 values but completion_ids has 3"),
        ({"env_mask": [[1, 0, 1, 1]] * 4}, "row 0: env_mask has 4 values but completion_ids has 3"),
        ({"env_mask": [[1, 0, 1]] * 3}, "column env_mask has 3 rows but completion_ids has 4"),
        ({"env_mask": [[1, 0, 2]] * 4}, "row 0: env_mask holds 2, expected only 0"),
        ({"logprobs": [[-0.1]] * 4}, "row 0: logprobs has 1 values but completion_ids has 3"),
        ({"completion_ids": [10, 20, 11, 12]}, "row 0: completion_ids is 10, expected a list of token ids"),
        (
            {"completion_ids": [[10, 20, 99_999]] * 4},
            "row 0: completion_ids holds 99999, but the model knows ids below",
        ),
        ({"prompt_ids": [[1, 2]] * 3 + [[1, 99_999]]}, "row 3: prompt_ids holds 99999, but the model knows ids below"),
        ({"completion_ids": [[10, -1, 11]] * 4}, "row 0: completion_ids holds -1, expected only token ids"),
        ({"completion_ids": [[]] * 4, "env_mask": [[]] * 4, "logprobs": [[]] * 4}, "row 0: completion_ids is empty"),
    ],
)
def test_rows_that_cannot_be_one_rollout_are_refused_before_anything_is_trained(columns, message, tmp_path):
    """TRL pads a short mask with ones, which trains what the environment wrote."""
    trainer = make_trainer(
        tmp_path,
        lambda completions, **_: [0.0] * 4,
        tools=None,
        rollout_func=lambda prompts, trainer: rollout(prompts, trainer, **columns),
    )
    with pytest.raises(ValueError, match=message):
        trainer.train()


def test_a_dataset_column_named_like_a_reward_keyword_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    dataset = Dataset.from_dict({"prompt": [user("row")], "unfinished": [True]})
    with pytest.raises(ValueError, match=r"columns \['unfinished'\]"):
        EnvMaskGRPOTrainer(
            tiny_model(tokenizer),
            lambda completions, **_: [],
            EnvMaskGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False),
            dataset,
            processing_class=tokenizer,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"unfinished_policy": "ignore"},
            "unfinished_policy is 'ignore', expected one of 'train', 'mask_loss', 'drop'",
        ),
        ({"control_tokens": "keep"}, "control_tokens is 'keep'"),
        ({"observation_cut": "left"}, "observation_cut is 'left'"),
        ({"tool_timeout_s": 0.0}, "tool_timeout_s is 0.0, expected more than 0 seconds"),
        ({"max_turn_tokens": 0}, "max_turn_tokens is 0, expected at least 1"),
    ],
)
def test_a_wrong_option_is_named_before_any_work(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        EnvMaskGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **options)


def test_a_template_that_trl_does_not_know_trains(tmp_path):
    """TRL knows templates byte by byte."""
    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0, 1.0, 0.0, 1.0], [CALL_AND_ANSWER] * 4)
    template = trainer.processing_class.chat_template
    assert template not in {value for value in vars(chat_template_utils).values() if isinstance(value, str)}
    trainer.train()
    assert logged(trainer)["tools/call_frequency"] == 1.0


def test_every_row_keeps_its_prompt_completion_reward_and_advantage(tmp_path):
    """An id is hidden in each."""

    def reward(completions, **_):
        return [float(completion[-1]["content"]) for completion in completions]

    scripts = [[answer(str(n))] for n in (3, 1, 2, 8)]
    trainer = make_trainer(tmp_path, reward, scripts, scale_rewards="none")
    kept = []
    trainer.after_scoring = kept.append
    trainer.train()
    texts = trainer.processing_class.batch_decode(kept[0]["completion_ids"], skip_special_tokens=True)
    assert kept[0]["advantages"].tolist() == pytest.approx([float(text) - 3.5 for text in texts])


def test_observations_that_are_trained_have_no_sampling_logprob_to_be_corrected_by():
    """With the mask off and vLLM, a recorded 0.0 would look like a huge mismatch and silence the loss."""
    from envmask_trl import Segment, Source, Trajectory
    from envmask_trl.training.rows import to_columns, trl_rows

    segments = (
        Segment(Source.PROMPT, (1,)),
        Segment(Source.MODEL, (10,), (-0.1,)),
        Segment(Source.ENV, (20,)),
        Segment(Source.MODEL, (11,), (-0.3,)),
    )
    row = Trajectory(segments, StopReason.ANSWERED)
    columns = to_columns([row]) | {"completion_text": [""], "model_text": [""], "no_loss": [False]}
    options = {"filler_id": 0}
    off = trl_rows(columns, [row], [[]], mask_env_tokens=False, **options)
    assert off["env_mask"] == [[1, 1, 1]] and off["logprobs"][0][1] != off["logprobs"][0][1]
    on = trl_rows(columns, [row], [[]], mask_env_tokens=True, **options)
    assert on["env_mask"] == [[1, 0, 1]] and on["logprobs"] == [[-0.1, 0.0, -0.3]]
