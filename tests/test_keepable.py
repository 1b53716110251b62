"""Models and options with which no cache is kept are refused in a sentence, where they would sample something else."""

import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM, LlamaConfig, LlamaForCausalLM

from envmask_trl import Context, KeptCacheSampler

from .tiny import impatient_model, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SMALL = {"vocab_size": len(TOKENIZER), "hidden_size": 16, "max_position_embeddings": 32}


def windowed_by_columns():
    layers = {"num_layers": 1, "attention_types": [[["local"], 1]]}
    return GPTNeoForCausalLM(GPTNeoConfig(**SMALL, **layers, num_heads=2, window_size=4))


def turned_by_length(rope_type, **further):
    rope = {"rope_type": rope_type, "factor": 2.0, "rope_theta": 10000.0, **further}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return LlamaForCausalLM(LlamaConfig(**SMALL, **layers, rope_parameters=rope))


def test_a_window_over_columns_would_count_the_holes_of_rows_that_ended_early():
    with pytest.raises(ValueError, match="GPTNeoForCausalLM has layers with a window over columns"):
        KeptCacheSampler(windowed_by_columns(), TOKENIZER)


def test_keys_that_were_turned_for_a_shorter_row_do_not_fit_a_longer_one():
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}
    for model in (turned_by_length("dynamic"), turned_by_length("longrope", **factors)):
        with pytest.raises(ValueError, match="turns its keys by an angle that depends on the length of the row"):
            KeptCacheSampler(model, TOKENIZER)
    KeptCacheSampler(turned_by_length("linear"), TOKENIZER)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 2}, "ask for beam search"),
        ({"prompt_lookup_num_tokens": 2}, "ask for assisted generation"),
        ({"guidance_scale": 1.5}, "guidance_scale is 1.5, whose processor keeps a state of the whole batch"),
        ({"encoder_repetition_penalty": 1.2}, "encoder_repetition_penalty is 1.2"),
        ({"encoder_no_repeat_ngram_size": 2}, "encoder_no_repeat_ngram_size is 2"),
    ],
)
def test_options_that_are_not_of_one_row_and_its_next_token_are_not_ignored(options, said):
    with pytest.raises(ValueError, match=said):
        KeptCacheSampler(tiny_model(TOKENIZER), TOKENIZER, do_sample=False, generation_kwargs=options)


def test_options_that_come_with_the_model_are_asked_for_too():
    model = tiny_model(TOKENIZER)
    model.generation_config.num_beams = 4
    with pytest.raises(ValueError, match="ask for beam sample"):
        KeptCacheSampler(model, TOKENIZER)
    model.generation_config.num_return_sequences = 2
    with pytest.raises(ValueError, match="num_return_sequences is 2"):
        KeptCacheSampler(model, TOKENIZER, generation_kwargs={"num_beams": 1})
    model.generation_config.num_return_sequences = None
    KeptCacheSampler(model, TOKENIZER, generation_kwargs={"num_beams": 1})


def test_the_penalty_of_repetition_does_not_fall_on_the_eos_that_pads_a_shorter_row():
    model = impatient_model(TOKENIZER)
    shorter, longer = Context(0, (5, 6, 7)), Context(1, (8, 9, 10, 11, 12))
    with torch.no_grad():
        best = int(model(torch.tensor([shorter.token_ids])).logits[0, -1].argmax())
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.lm_head.weight[TOKENIZER.eos_token_id] = 1.01 * model.lm_head.weight[best]
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    options = {"do_sample": False, "generation_kwargs": {"repetition_penalty": 3.0}}
    alone, beside = (
        KeptCacheSampler(model, tokenizer, **options).sample(contexts, [4] * len(contexts))[0]
        for contexts in ([shorter], [shorter, longer])
    )
    assert alone.token_ids == (tokenizer.eos_token_id,) and beside == alone
