"""Which sampler the trainer uses, and that it makes no difference to what is sampled."""

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, TrainerCallback

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, KeptCacheSampler, load_rollouts
from envmask_trl.training import sampling
from envmask_trl.training.rows import once_per_run
from envmask_trl.training.sampling import open_sampler
from envmask_trl.training.trl_sampler import TRLSampler

from .tiny import impatient_model, tiny_tokenizer
from .trained_scripts import make_trainer


def half(completions, **_):
    return [float(i % 2) for i in range(len(completions))]


class Update(TrainerCallback):
    """Changes the weights after each step: members of a greedy group are equal, and so nothing is learned from them."""

    def on_step_end(self, args, state, control, model, **kwargs):
        torch.manual_seed(state.global_step)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.3 * weight.std() * torch.randn_like(weight))


def sliding_model():
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=len(tiny_tokenizer()),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=16,
            sliding_window=4096,
            max_position_embeddings=512,
        )
    )


def trainer_with(model, tmp_path, **options):
    trainer = make_trainer(tmp_path, half)  # for its dataset and its tokenizer
    arguments = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": [], "num_generations": 4}
    arguments |= {"per_device_train_batch_size": 4, "max_completion_length": 24, "max_steps": 2, "save_strategy": "no"}
    return EnvMaskGRPOTrainer(
        model,
        half,
        EnvMaskGRPOConfig(**(arguments | options)),
        trainer.train_dataset,
        processing_class=trainer.processing_class,
        tools=trainer.standalone_tools,
    )


def test_greedy_training_samples_the_same_tokens_from_kept_caches_and_from_generate_after_an_update_too(tmp_path):
    rows = {}
    for sampler in ("kept_cache", "trl"):
        folder = tmp_path / sampler
        options = {"sampler": sampler, "generation_kwargs": {"do_sample": False}, "max_steps": 3}
        trainer = trainer_with(impatient_model(tiny_tokenizer()), folder, **options)
        trainer.add_callback(Update())
        trainer.train()
        rows[sampler] = [load_rollouts(path) for path in sorted((folder / "rollouts").glob("*.parquet"))]
    kept, generated = ([[t["completion_ids"] for t in step] for step in rows[name]] for name in ("kept_cache", "trl"))
    assert len(kept) == 3 and kept == generated and kept[0] != kept[2]


@pytest.mark.parametrize(("choice", "expected"), [("auto", KeptCacheSampler), ("trl", TRLSampler)])
def test_the_sampler_is_made_anew_for_each_batch(choice, expected, tmp_path):
    trainer = make_trainer(tmp_path, half, sampler=choice, temperature=0.5, top_k=7, repetition_penalty=1.5)
    with open_sampler(trainer) as first, open_sampler(trainer) as second:
        assert type(first) is type(second) is expected and first is not second
        if choice == "auto":
            assert (first.config.temperature, first.config.top_k, first.config.repetition_penalty) == (0.5, 7, 1.5)
            assert sorted(trainer.eos_token_ids) == first.config.eos_token_id


@pytest.mark.parametrize("overlap", [True, False])
def test_tools_that_cannot_run_beside_the_model_are_run_between_rounds(overlap, tmp_path):
    trainer = trainer_with(impatient_model(tiny_tokenizer()), tmp_path, overlap_tools=overlap)
    with open_sampler(trainer) as sampler:
        assert sampler.overlap_tools is overlap


def test_a_model_that_drops_keys_is_sampled_by_trl_and_said_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sampling.logger, "propagate", True)
    trainer = trainer_with(sliding_model(), tmp_path)
    assert not trainer.keeps_cache and "DynamicSlidingWindowLayer" in caplog.text
    with open_sampler(trainer) as sampler:
        assert isinstance(sampler, TRLSampler)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, "DynamicSlidingWindowLayer"), ({"cache_implementation": "static"}, "cache_implementation is 'static'")],
)
def test_kept_caches_that_cannot_be_had_are_refused_before_work_starts(options, reason, tmp_path):
    model = impatient_model(tiny_tokenizer()) if options else sliding_model()
    with pytest.raises(ValueError, match=reason):
        trainer_with(model, tmp_path, sampler="kept_cache", **options)


def test_tokens_are_not_sampled_at_another_temperature_than_the_loss_divides_by(tmp_path):
    model = impatient_model(tiny_tokenizer())
    with pytest.raises(ValueError, match=r"generation_kwargs has temperature 0\.7, but the loss .* at 1\.0; set"):
        trainer_with(model, tmp_path, generation_kwargs={"temperature": 0.7})
    with pytest.raises(ValueError, match="the loss divides logits by it"):
        trainer_with(model, tmp_path, temperature=0.0)
    trainer_with(model, tmp_path, temperature=0.7, generation_kwargs={"temperature": 0.7})


def test_an_unknown_sampler_is_named(tmp_path):
    with pytest.raises(ValueError, match="sampler is 'fast', expected one of 'auto', 'kept_cache', 'trl'"):
        EnvMaskGRPOConfig(output_dir=str(tmp_path), sampler="fast", bf16=False)


def test_a_prompt_is_encoded_once_for_its_group_and_each_member_gets_its_own(tmp_path):
    asked = []

    def encode(prompts):
        asked.extend(prompts)
        return [[ord(prompt)] for prompt in prompts]

    assert once_per_run(encode, ["a", "a", "b", "a"]) == [[97], [97], [98], [97]] and asked == ["a", "b", "a"]


def test_a_template_whose_turns_end_with_no_stop_token_is_refused_when_the_trainer_is_made(tmp_path, monkeypatch):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "")
    monkeypatch.setattr("tests.trained_scripts.tiny_tokenizer", lambda: tokenizer)
    with pytest.raises(ValueError, match="without a stop token"):
        make_trainer(tmp_path, half)
