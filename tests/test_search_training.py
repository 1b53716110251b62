"""Searching in the trainer, and samplers that stop at a closing tag."""

import pytest
from datasets import Dataset

from envmask_trl import (
    Context,
    EnvMaskGRPOConfig,
    EnvMaskGRPOTrainer,
    KeptCacheSampler,
    SearchTool,
    TagProtocol,
    TransformersSampler,
)
from envmask_trl.training.sampling import engine_stops_at, open_sampler

from .tagged import TwoDocuments, tagged_tokenizer
from .tiny import add, impatient_model, tiny_model, tiny_tokenizer
from .trained_scripts import EveryTime

TINY, TAGGED = tiny_tokenizer(), tagged_tokenizer()
PROMPTS = [(5, 6, 7, 8, 9), (10,), (11, 12, 13)]
LETTERS = {"do_sample": False, "generation_kwargs": {"suppress_tokens": list(range(100, len(TINY)))}}
SEARCH, ANSWER = (10, 11, 12), (13, 14, 15)


def test_both_samplers_stop_with_the_token_that_completes_a_stop_string():
    model = impatient_model(TINY)
    contexts = [Context(i, prompt) for i, prompt in enumerate(PROMPTS)]
    plain = KeptCacheSampler(model, TINY, **LETTERS).sample(contexts, [8, 8, 8])
    stops = [TINY.decode(plain[0].token_ids[:3]), TINY.decode(plain[2].token_ids[4:6])]
    for sampler in (KeptCacheSampler, TransformersSampler):
        samples = sampler(model, TINY, stop_strings=stops, **LETTERS).sample(contexts, [8, 8, 8])
        for stopped, whole in zip(samples, plain, strict=True):
            assert whole.token_ids[: len(stopped.token_ids)] == stopped.token_ids
            assert not any(stop in TINY.decode(stopped.token_ids[:-1]) for stop in stops)
        assert samples[0].token_ids == plain[0].token_ids[:3] and samples[0].finish_reason == "stop"
        assert samples[1] == plain[1] if sampler is KeptCacheSampler else samples[1].token_ids == plain[1].token_ids
        assert len(samples[2].token_ids) == 6 and samples[2].finish_reason == "stop"


def make_trainer(tmp_path, **options):
    config = EnvMaskGRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=150,
        max_steps=1,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        audit_first_step=True,
    )
    return EnvMaskGRPOTrainer(
        tiny_model(TAGGED),
        options.pop("reward", lambda completions, **_: [float(len(text)) for text in completions]),
        config,
        Dataset.from_dict({"prompt": ["Where is Oslo?"] * 4}),
        processing_class=TAGGED,
        protocol=TagProtocol(SearchTool(options.pop("retriever", TwoDocuments())).search, TAGGED),
        **options,
    )


def test_a_step_trains_what_the_model_wrote_and_shows_rewards_both(tmp_path):
    seen = {}

    def reward(completions, model_texts, trajectories, **_):
        seen.update(completions=completions, model_texts=model_texts, calls=[len(t.tool_results) for t in trajectories])
        return [1.0, 0.0, 0.0, 0.0]

    retriever = TwoDocuments()
    trainer = make_trainer(tmp_path, reward=reward, retriever=retriever)
    scripts = [[SEARCH, ANSWER], [ANSWER], [(10, 18, 12), ANSWER], [(21, 24, 23, *ANSWER)]]
    trainer.sampler = EveryTime(scripts)
    trainer.train()
    assert trainer.columns["completion_ids"][0] == [10, 11, 12, 20, 21, 22, 23, 20, 13, 14, 15]
    assert trainer.columns["env_mask"][0] == [1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]
    assert seen["calls"] == [1, 0, 1, 0] and sorted(retriever.batches[0]) == ["Lima", "Oslo"]
    assert "In Norway." in seen["completions"][0] and "In Norway." not in seen["model_texts"][0]
    assert trainer.audit_report is not None and trainer.audit_report.passed
    logged = trainer.state.log_history[0]
    assert logged["tools/search/call_frequency"] == 0.5
    assert logged["env_mask/plays_environment_share"] == 0.25  # row 3 wrote <information> itself


def test_the_trainers_own_sampler_stops_at_the_tags(tmp_path):
    trainer = make_trainer(tmp_path)
    assert trainer.keeps_cache
    only_closing = {"suppress_tokens": [i for i in range(len(TAGGED)) if i != 15]}
    trainer.generation_kwargs |= only_closing
    with open_sampler(trainer) as sampler:
        samples = sampler.sample([Context(0, (1,)), Context(1, (2,))], [30, 30])
    assert [sample.token_ids for sample in samples] == [(15,), (15,)]
    assert {sample.finish_reason for sample in samples} == {"stop"}


def test_vllm_is_told_the_closing_tags(tmp_path):
    protocol = TagProtocol(SearchTool(TwoDocuments()).search, TAGGED)
    config = EnvMaskGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, generation_kwargs={"seed": 1})
    assert engine_stops_at(config, protocol) is config and engine_stops_at(config, None) is config
    config.use_vllm = True
    told = engine_stops_at(config, protocol).generation_kwargs
    assert told == {"stop": ["</search>", "</answer>"], "include_stop_str_in_output": True, "seed": 1}
    assert config.generation_kwargs == {"seed": 1}
    config.generation_kwargs = {"stop": "END"}  # the user's own stays, beside the tags
    assert engine_stops_at(config, protocol).generation_kwargs["stop"] == ["</search>", "</answer>", "END"]


def test_tools_beside_a_protocol_are_refused_before_training(tmp_path):
    TAGGED_WITH_TEMPLATE = tiny_tokenizer()
    with pytest.raises(ValueError, match="a protocol calls a tool of its own"):
        EnvMaskGRPOTrainer(
            tiny_model(TAGGED_WITH_TEMPLATE),
            lambda completions, **_: [0.0] * len(completions),
            EnvMaskGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[]),
            Dataset.from_dict({"prompt": ["x"] * 8}),
            processing_class=TAGGED_WITH_TEMPLATE,
            tools=[add],
            protocol=TagProtocol(SearchTool(TwoDocuments()).search, TAGGED_WITH_TEMPLATE),
        )
