"""The trainer: TRL's arguments, rewards on exactly what is trained, nothing ignored, nothing lost."""

from collections import Counter
from typing import ClassVar

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, chat_template_utils

from envmask_trl import (
    EnvMaskGRPOConfig,
    EnvMaskGRPOTrainer,
    RolloutAborted,
    ScriptedSampler,
    StopReason,
    load_rollouts,
)

from .tiny import add, answer, call, tiny_model, tiny_tokenizer, user

CALL_AND_ANSWER = [call("add", a=1, b=2), answer("3")]
GOLD = "4"


class EveryTime(ScriptedSampler):
    """Plays a row's script from the start whenever its context does not continue the one before."""

    def __init__(self, scripts):
        super().__init__(scripts)
        self.last = {}

    def sample(self, contexts, max_new_tokens):
        for context in contexts:
            before = self.last.get(context.id, ())
            if len(context.token_ids) <= len(before) or context.token_ids[: len(before)] != before:
                self.turns_played[context.id] = 0
            self.last[context.id] = context.token_ids
        return super().sample(contexts, max_new_tokens)


def make_trainer(tmp_path, reward, scripts=None, *, rows=4, config=EnvMaskGRPOConfig, **options):
    tokenizer = tiny_tokenizer()
    constructor = {"tools": [add]} | {
        k: options.pop(k) for k in ("tools", "environment_factory", "rollout_func", "parser") if k in options
    }
    defaults = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 160,
        "max_steps": 1,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "loss_type": "grpo",
    }
    trainer = EnvMaskGRPOTrainer(
        tiny_model(tokenizer),
        reward,
        config(**{**defaults, **options}),
        Dataset.from_dict({"prompt": [user(f"row {n}") for n in range(rows)], "gold": [GOLD] * rows}),
        processing_class=tokenizer,
        **constructor,
    )
    if scripts is not None:
        ids = [[tokenizer(turn, add_special_tokens=False)["input_ids"] for turn in script] for script in scripts]
        trainer.sampler = EveryTime(ids)
    return trainer


def logged(trainer) -> dict:
    return trainer.state.log_history[0]


def test_rewards_get_exactly_what_is_trained(tmp_path):
    seen = {}

    def reward(
        prompts,
        completions,
        completion_ids,
        gold,
        trajectories,
        completion_texts,
        model_texts,
        stop_reasons,
        unfinished,
        **_,
    ):
        seen.update(locals())
        return [0.0, 1.0, 0.0, 1.0]

    trainer = make_trainer(tmp_path, reward, [CALL_AND_ANSWER] * 3 + [[answer("dunno")]])
    trainer.train()
    for ids, text, row in zip(seen["completion_ids"], seen["completion_texts"], seen["trajectories"], strict=True):
        assert ids == list(row.completion_ids)
        assert text == trainer.processing_class.decode(ids, skip_special_tokens=True)
    assert seen["model_texts"][3] == "dunno" and seen["model_texts"][0].endswith("\n3")
    assert "<tool_response>" in seen["completion_texts"][0] and "<tool_response>" not in seen["model_texts"][0]
    assert seen["stop_reasons"] == [StopReason.ANSWERED] * 4 and seen["unfinished"] == [False] * 4
    assert seen["gold"] == [GOLD] * 4
    assert [message["role"] for message in seen["completions"][0]] == ["assistant", "tool", "assistant"]
    assert logged(trainer)["tools/call_frequency"] == 0.75
    assert 0 < logged(trainer)["env_mask/env_token_share"] < 1


def test_a_reward_on_the_models_text_does_not_pay_for_what_a_tool_said(tmp_path):
    """I-81, T11: the tool prints the gold answer, the model does not."""

    def reward(model_texts, completion_texts, gold, **_):
        assert all(g in text for g, text in zip(gold, completion_texts, strict=True))
        return [float(g in text) for g, text in zip(gold, model_texts, strict=True)]

    trainer = make_trainer(tmp_path, reward, [[call("add", a=2, b=2), answer("dunno")]] * 4)
    trainer.train()
    assert logged(trainer)["reward"] == 0.0


def test_a_row_in_which_nothing_was_sampled_is_scored_and_has_no_vote(tmp_path):
    lengths = []

    def reward(completions, trajectories, **_):
        lengths.append([len(row.completion_ids) for row in trajectories])
        return [float(len(completion[-1]["content"])) for completion in completions]

    trainer = make_trainer(tmp_path, reward, [CALL_AND_ANSWER] * 4)
    trainer.model.config.max_position_embeddings = 10  # no prompt fits
    trainer.train()
    assert lengths == [[0, 0, 0, 0]] and logged(trainer)["loss"] == 0.0
    assert logged(trainer)["env_mask/stop/prompt_too_long"] == 1.0


@pytest.mark.parametrize("policy", ["train", "mask_loss", "drop"])
def test_unfinished_rollouts_are_used_as_the_policy_says(policy, tmp_path):
    """I-33, I-102: rewards 4, 0, 2, 2; the row of reward 4 was cut by length."""
    batches = []

    cut = answer("7" * 200)
    trainer = make_trainer(
        tmp_path,
        lambda completions, **_: [4.0, 0.0, 2.0, 2.0],
        [[cut], *[[answer("7")]] * 3],
        unfinished_policy=policy,
        max_completion_length=20,
        scale_rewards="none",
    )
    original = trainer.after_scoring
    trainer.after_scoring = lambda batch: (batches.append(batch), original(batch))
    trainer.train()
    (batch,) = batches
    trained = (batch["completion_mask"] * batch["tool_mask"]).sum(dim=1).tolist()
    assert [sum(row["loss_mask"]) for row in load_rollouts(tmp_path / "rollouts")] == trained
    expected = {
        "train": ([20, 2, 2, 2], [2.0, -2.0, 0.0, 0.0]),
        "mask_loss": ([0, 2, 2, 2], [2.0, -2.0, 0.0, 0.0]),  # still in the baseline of 2
        "drop": ([0, 2, 2, 2], [0.0, -4 / 3, 2 / 3, 2 / 3]),  # the baseline is that of the other three, 4 / 3
    }[policy]
    assert trained == expected[0]
    assert batch["advantages"].tolist() == pytest.approx(expected[1])
    assert batch["completion_mask"][0].sum() == 20  # seen, whatever the loss does
    assert logged(trainer)["completions/clipped_ratio"] == 0.25


def test_mask_truncated_completions_means_mask_loss(tmp_path):
    config = EnvMaskGRPOConfig(output_dir=str(tmp_path), mask_truncated_completions=True, use_cpu=True, bf16=False)
    assert config.unfinished_policy == "mask_loss" and config.mask_truncated_completions is False


def test_a_script_with_trls_own_config_runs_with_only_the_import_changed(tmp_path):
    scripts = [[call("add", a=1, b=n), answer(str(n))] for n in range(4)]
    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0, 1.0, 0.0, 1.0], scripts, config=GRPOConfig)
    before = trainer.model.model.layers[0].mlp.up_proj.weight.clone()
    trainer.train()
    assert isinstance(trainer.args, EnvMaskGRPOConfig) and trainer.args.max_tool_calling_iterations == 16
    assert not torch.equal(before, trainer.model.model.layers[0].mlp.up_proj.weight)


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
    """I-66: also when a reward function raises in the middle."""
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
        ({"completion_ids": [[]] * 4, "env_mask": [[]] * 4, "logprobs": [[]] * 4}, "row 0: completion_ids is empty"),
    ],
)
def test_rows_that_cannot_be_one_rollout_are_refused_before_anything_is_trained(columns, message, tmp_path):
    """I-10: TRL pads a short mask with ones, which trains what the environment wrote."""
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
    """T19: TRL knows templates byte by byte."""
    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0, 1.0, 0.0, 1.0], [CALL_AND_ANSWER] * 4)
    template = trainer.processing_class.chat_template
    assert template not in {value for value in vars(chat_template_utils).values() if isinstance(value, str)}
    trainer.train()
    assert logged(trainer)["tools/call_frequency"] == 1.0


def test_every_row_keeps_its_prompt_completion_reward_and_advantage(tmp_path):
    """I-45: an id is hidden in each."""

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
    columns = to_columns([row]) | {"completion_text": [""], "model_text": [""]}
    options = {"filler_id": 0, "mask_unfinished": False}
    off = trl_rows(columns, [row], [[]], mask_env_tokens=False, **options)
    assert off["env_mask"] == [[1, 1, 1]] and off["logprobs"][0][1] != off["logprobs"][0][1]
    on = trl_rows(columns, [row], [[]], mask_env_tokens=True, **options)
    assert on["env_mask"] == [[1, 0, 1]] and on["logprobs"] == [[-0.1, 0.0, -0.3]]
