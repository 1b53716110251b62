"""The trainer: rewards on exactly what is trained, nothing ignored, nothing lost."""

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig

from envmask_trl import (
    EnvMaskGRPOConfig,
    EnvMaskGRPOTrainer,
    StopReason,
    load_rollouts,
)
from envmask_trl.training import chat_format

from .tiny import CHAT_TEMPLATE, add, answer, call, tiny_model, tiny_tokenizer, user
from .trained_scripts import CALL_AND_ANSWER, GOLD, logged, make_trainer


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


def test_a_reward_is_told_which_rollouts_read_a_shortened_observation(tmp_path):
    seen = []

    def reward(cut_observations, **_):
        seen.extend(cut_observations)
        return [0.0, 1.0, 0.0, 1.0]

    def add(a: int, b: int) -> str:
        """The sum of two numbers, with a long proof.

        Args:
            a: A number.
            b: Another number.
        """
        return "therefore " * 40 + str(a + b)

    scripts = [CALL_AND_ANSWER, [answer("3")], CALL_AND_ANSWER, [answer("3")]]
    make_trainer(tmp_path, reward, scripts, tools=[add], max_observation_tokens=20).train()
    assert seen == [1, 0, 1, 0]


def test_a_reward_on_the_models_text_does_not_pay_for_what_a_tool_said(tmp_path):
    """The tool prints the gold answer, the model does not."""

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
    """Rewards 4, 0, 2, 2; the row of reward 4 was cut by length."""
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


def zeros(completions, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"args": {"output_dir": "x"}}, r"args is a dict, .*; write EnvMaskGRPOConfig\(\*\*args\)"),
        ({"model": 5}, "model is 5, expected a transformers model"),
        ({"processing_class": "gpt2"}, r"tokenizer is 'gpt2', .*; write AutoTokenizer.from_pretrained\('gpt2'\)"),
        ({"reward_funcs": [zeros, 5]}, r"reward_funcs\[1\] is 5, expected a function that scores"),
        ({"parser": 5}, "parser is 5, expected a function"),
        ({"environment_factory": 5}, "environment_factory is 5, expected a class or function .*; write"),
        ({"environment_factory": {"a": Dataset.from_list([])}}, r"environment_factory\['a'\] is a Dataset, expected"),
        ({"environment_factory": {}}, "environment_factory is an empty dict"),
        ({"environment_factory": Dataset}, "Dataset, is called without arguments .* 'arrow_table'; give .* defaults"),
    ],
)
def test_what_is_of_another_kind_than_the_trainer_takes_is_named_before_a_model_is_loaded(given, message):
    with pytest.raises(ValueError, match=message):
        EnvMaskGRPOTrainer(**{"model": "no/model", "reward_funcs": zeros} | given)


def make_plain(tmp_path, tokenizer, **options):
    config = EnvMaskGRPOConfig(output_dir=str(tmp_path), num_generations=2, use_cpu=True, bf16=False, report_to=[])
    rows = Dataset.from_list([{"prompt": user("a")}] * 4)
    return EnvMaskGRPOTrainer(tiny_model(tiny_tokenizer()), zeros, config, rows, processing_class=tokenizer, **options)


def test_tools_that_the_template_never_shows_are_told_aloud_and_once(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(chat_format.logger, "warning", said.append)
    make_plain(tmp_path, tiny_tokenizer(), tools=[add])
    assert said == []
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace("{%- if tools -%}", "{%- if false -%}")
    make_plain(tmp_path, tokenizer, tools=[add])
    assert len(said) == 1 and said[0].startswith("the chat template never shows the model the tools")
    assert said[0].endswith("check_template(tokenizer, tools) says what else it does")


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused_before_a_step(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<one>"])
    with pytest.raises(ValueError, match=r"call model\.resize_token_embeddings"):
        make_plain(tmp_path, tokenizer)
