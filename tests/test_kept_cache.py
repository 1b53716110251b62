"""Kept keys and values: the same tokens as encoding everything again, from fewer forwarded tokens."""

import contextlib

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from envmask_trl import Context, KeptCacheSampler, TransformersSampler

from .tiny import impatient_model, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PROMPTS = [(5, 6, 7, 8, 9), (10,), (11, 12, 13), (5, 6, 7, 8, 9), (14, 15), (16, 17, 18, 20)]
BUDGETS = [9, 3, 7, 9, 1, 8]


def played(sampler, *, rounds=4, prompts=PROMPTS, budgets=BUDGETS, ids=None):
    """Several turns of every row, each followed by an observation of its own length; the turns of each row."""
    ids = list(ids or range(len(prompts)))
    contexts, turns = dict(zip(ids, prompts, strict=True)), {row: [] for row in ids}
    for round_ in range(rounds):
        samples = sampler.sample([Context(row, contexts[row]) for row in ids], budgets)
        for row, sample in zip(ids, samples, strict=True):
            observation = tuple(21 + (row + round_ + k) % 40 for k in range(1 + (row * 5 + round_) % 7))
            turns[row].append(sample)
            contexts[row] += sample.token_ids + observation
    return turns


@contextlib.contextmanager
def forwarded(model):
    """Collects the shape of the ids of every forward, and how many of them are tokens and not padding."""
    shapes = []

    def note(module, args, kwargs):
        ids = kwargs["input_ids"]
        shapes.append((*ids.shape, int(kwargs["attention_mask"][:, -ids.size(1) :].sum())))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    yield shapes
    handle.remove()


def tokens(turns):
    return {row: [sample.token_ids for sample in samples] for row, samples in turns.items()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_greedy_turns_are_those_of_generate_on_the_whole_history(attention):
    model = impatient_model(TOKENIZER)
    model.set_attn_implementation(attention)
    expected = played(TransformersSampler(model, TOKENIZER, do_sample=False))
    kept = played(KeptCacheSampler(model, TOKENIZER, do_sample=False))
    assert tokens(kept) == tokens(expected)
    reasons = [sample.finish_reason for samples in kept.values() for sample in samples]
    assert reasons == [sample.finish_reason for samples in expected.values() for sample in samples]
    assert {"stop", "length"} == set(reasons), "rows must stop at different times for this test to say something"


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}])
def test_recorded_logprobs_are_those_of_a_plain_forward_under_the_sampling_distribution(options):
    model = impatient_model(TOKENIZER)
    turns = played(KeptCacheSampler(model, TOKENIZER, **options), rounds=3)
    for row, samples in turns.items():
        history = PROMPTS[row]
        for round_, sample in enumerate(samples):
            ids = torch.tensor([history + sample.token_ids])
            with torch.no_grad():
                logits = model.eval()(ids).logits[0, len(history) - 1 : -1].double()
            scores = logits / options["temperature"]
            logprobs = scores.log_softmax(-1)
            if "top_k" in options:
                scores = scores.masked_fill(scores < scores.topk(options["top_k"]).values[:, -1:], -torch.inf)
                ordered, order = scores.softmax(-1).sort(descending=True)
                outside = ordered.cumsum(-1) - ordered >= options["top_p"]
                logprobs = scores.masked_fill(outside.gather(1, order.argsort()), -torch.inf).log_softmax(-1)
            told = logprobs.gather(1, torch.tensor(sample.token_ids).unsqueeze(1)).squeeze(1)
            assert torch.tensor(sample.logprobs).allclose(told.float(), atol=2e-4)
            observation = tuple(21 + (row + round_ + k) % 40 for k in range(1 + (row * 5 + round_) % 7))
            history += sample.token_ids + observation


def test_what_a_row_samples_does_not_depend_on_the_rows_beside_it():
    model = impatient_model(TOKENIZER)

    def drawn(rows):
        torch.manual_seed(3)
        sampler = KeptCacheSampler(model, TOKENIZER)
        return tokens(played(sampler, prompts=[PROMPTS[r] for r in rows], budgets=[BUDGETS[r] for r in rows], ids=rows))

    together = drawn([0, 1, 2, 3, 4, 5])
    assert drawn([5, 2, 0]) == {row: together[row] for row in (5, 2, 0)}
    assert drawn([3]) == {3: together[3]}
    assert together[0] != together[3], "two rollouts of one prompt differ"


def test_the_seed_decides_what_is_sampled_and_the_next_batch_samples_something_else():
    sampler = KeptCacheSampler(tiny_model(TOKENIZER), TOKENIZER)
    torch.manual_seed(1)
    first = sampler.sample([Context(0, (5, 6))], [8])
    assert sampler.sample([Context(0, (5, 6))], [8]) != first
    torch.manual_seed(1)
    assert sampler.sample([Context(0, (5, 6))], [8]) == first


def test_tokens_are_drawn_as_often_as_they_are_probable():
    model = impatient_model(TOKENIZER)
    samples = KeptCacheSampler(model, TOKENIZER).sample([Context(row, (5, 6, 7)) for row in range(4000)], [1] * 4000)
    counts = torch.bincount(torch.tensor([s.token_ids[0] for s in samples]), minlength=len(TOKENIZER)).double()
    with torch.no_grad():
        expected = 4000 * model.eval()(torch.tensor([[5, 6, 7]])).logits[0, -1].double().softmax(-1)
    often = expected >= 5
    chi_square = ((counts - expected)[often] ** 2 / expected[often]).sum()
    freedom = int(often.sum()) - 1
    assert often.sum() > 5 and chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_a_prompt_is_encoded_once_for_its_group_and_a_turn_encodes_only_what_is_new():
    model = tiny_model(TOKENIZER)
    sampler = KeptCacheSampler(model, TOKENIZER)
    prompt = tuple(range(5, 45))
    with forwarded(model) as shapes:
        samples = sampler.sample([Context(row, prompt) for row in range(8)], [1] * 8)
    assert shapes == [(1, 40, 40)]
    with forwarded(model) as shapes:
        sampler.sample([Context(row, (*prompt, *samples[row].token_ids, 50, 51)) for row in range(8)], [1] * 8)
    assert shapes == [(8, 3, 24)], "the sampled token and the two of the observation"


def test_rows_that_stopped_leave_the_batch_and_come_back_for_their_next_turn():
    model = tiny_model(TOKENIZER)
    never = {"suppress_tokens": [TOKENIZER.eos_token_id]}
    sampler = KeptCacheSampler(model, TOKENIZER, generation_kwargs=never)
    contexts = [Context(row, (5 + row, 6, 7)) for row in range(8)]
    with forwarded(model) as shapes:
        samples = sampler.sample(contexts, [2, 2, 2, 2, 4, 4, 4, 12])
    assert [rows for rows, *_ in shapes[1:]] == [8, 4, 4, *[1] * 8]
    again = [Context(c.id, (*c.token_ids, *s.token_ids, 30)) for c, s in zip(contexts, samples, strict=True)]
    with forwarded(model) as shapes:
        sampler.sample(again, [1] * 8)
    assert shapes == [(8, 2, 16)]


def test_rows_that_are_over_are_forgotten():
    sampler = KeptCacheSampler(tiny_model(TOKENIZER), TOKENIZER)
    samples = sampler.sample([Context(row, (5, 6)) for row in range(4)], [2] * 4)
    sampler.sample([Context(2, (5, 6, *samples[2].token_ids, 7))], [2])
    assert list(sampler.kept) == [2] and sampler.kept[2].home.seen.size(0) == 1


def test_a_parked_row_goes_on_as_if_it_had_not_been_away_and_nothing_else_is_kept_for_it():
    model = impatient_model(TOKENIZER)

    def two_turns(*, parked):
        torch.manual_seed(3)
        sampler = KeptCacheSampler(model, TOKENIZER)
        contexts = [Context(row, PROMPTS[row]) for row in range(6)]
        first = sampler.sample(contexts, BUDGETS)
        again = [Context(c.id, (*c.token_ids, *s.token_ids, 30, 31)) for c, s in zip(contexts, first, strict=True)]
        if not parked:
            return sampler.sample(again, BUDGETS)[4:]
        sampler.sample(again[:2], BUDGETS[:2], parked=[4, 5])
        homes = {id(kept.home): kept.home for kept in sampler.kept.values()}
        assert list(sampler.kept) == [4, 5, 0, 1] and sum(home.seen.size(0) for home in homes.values()) == 4
        buffers = {h.layers[0].key_buffer.untyped_storage().data_ptr(): h.rows_in_memory for h in homes.values()}
        assert sum(buffers.values()) == 4, "and no buffer has rows that are not kept"
        with forwarded(model) as shapes:
            turns = sampler.sample(again[4:], BUDGETS[4:])
        assert shapes[0] == (2, 3, 6), "the sampled token and the two of the observation"
        return turns

    expected = two_turns(parked=False)
    assert [turn.token_ids for turn in two_turns(parked=True)] == [turn.token_ids for turn in expected]


def test_each_turn_is_told_once_when_it_ends_and_before_longer_ones_have():
    sampler = KeptCacheSampler(impatient_model(TOKENIZER), TOKENIZER)
    told = []
    contexts = [Context(row + 7, PROMPTS[row]) for row in range(6)]
    samples = sampler.sample(contexts, BUDGETS, on_turn=lambda row, sample: told.append((row, sample)))
    assert sorted(told, key=lambda pair: pair[0]) == list(enumerate(samples))
    lengths = [len(sample.token_ids) for _, sample in told]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_a_cache_never_survives_a_weight_update():
    model = impatient_model(TOKENIZER)
    sampler = KeptCacheSampler(model, TOKENIZER, do_sample=False)
    context = Context(0, (*PROMPTS[0], *sampler.sample([Context(0, PROMPTS[0])], [4])[0].token_ids, 30))
    sampler.sample([Context(1, PROMPTS[1])], [4], parked=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.tensor([PROMPTS[0]])).logits.sum().backward()
    optimizer.step()
    sampler.sample([Context(2, PROMPTS[1])], [4], parked=[0, 1])
    assert list(sampler.kept) == [2], "parked rows are dropped as well"
    with forwarded(model) as shapes:
        after = sampler.sample([context], [9])
    assert shapes[0][1] == len(context.token_ids), "all of it is encoded again"
    assert after == KeptCacheSampler(model, TOKENIZER, do_sample=False).sample([context], [9])


def test_a_context_that_continues_nothing_is_encoded_anew():
    sampler = KeptCacheSampler(impatient_model(TOKENIZER), TOKENIZER, do_sample=False)
    sampler.sample([Context(0, PROMPTS[0])], [4])
    other = [Context(0, (*PROMPTS[0][:-1], 60, 61, 62, 63))]
    assert sampler.sample(other, [5]) == KeptCacheSampler(sampler.model, TOKENIZER, do_sample=False).sample(other, [5])


@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 1}, {"suppress_tokens": list(range(100, 320))}],
)
def test_the_options_of_generate_are_applied_by_its_own_processors(options):
    model = impatient_model(TOKENIZER)

    def first_turns(cls, **generation_kwargs):
        patient = {"do_sample": False, "stop_token_ids": [TOKENIZER.eos_token_id]}
        return tokens(played(cls(model, TOKENIZER, generation_kwargs=generation_kwargs, **patient), rounds=1))

    expected = first_turns(TransformersSampler, **options)
    assert first_turns(KeptCacheSampler, **options) == expected != first_turns(TransformersSampler)


def test_top_k_of_one_is_greedy():
    model = impatient_model(TOKENIZER)
    assert tokens(played(KeptCacheSampler(model, TOKENIZER, top_k=1))) == tokens(
        played(KeptCacheSampler(model, TOKENIZER, do_sample=False))
    )


def test_a_stop_string_ends_a_turn():
    model = impatient_model(TOKENIZER)
    letters = {"do_sample": False, "generation_kwargs": {"suppress_tokens": list(range(100, len(TOKENIZER)))}}
    (plain,) = KeptCacheSampler(model, TOKENIZER, **letters).sample([Context(0, PROMPTS[0])], [6])
    stop = TOKENIZER.decode(plain.token_ids[:2])
    (stopped,) = KeptCacheSampler(model, TOKENIZER, stop_strings=[stop], **letters).sample(
        [Context(0, PROMPTS[0])], [6]
    )
    assert len(plain.token_ids) > 2 and stopped.token_ids == plain.token_ids[:2] and stopped.finish_reason == "stop"


def test_an_adapter_with_gradient_checkpointing_in_training_mode_samples_as_generate_does():
    model = get_peft_model(impatient_model(TOKENIZER), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    model.gradient_checkpointing_enable()
    model.train()
    assert tokens(played(KeptCacheSampler(model, TOKENIZER, do_sample=False))) == tokens(
        played(TransformersSampler(model, TOKENIZER, do_sample=False))
    )
    assert model.training


def test_under_bfloat16_autocast_the_tokens_are_generates():
    model = impatient_model(TOKENIZER)
    with torch.autocast("cpu", torch.bfloat16):
        sampler = KeptCacheSampler(model, TOKENIZER, do_sample=False)
        kept = played(sampler, rounds=2)
        expected = played(TransformersSampler(model, TOKENIZER, do_sample=False), rounds=2)
    assert sampler.kept[0].home.layers[0].values.dtype == torch.bfloat16
    assert tokens(kept) == tokens(expected)


def test_learned_positions_count_tokens_and_not_columns():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2, n_positions=256))
    model.transformer.wpe.weight.data.mul_(50)
    options = {"do_sample": False, "stop_token_ids": [TOKENIZER.eos_token_id]}
    assert tokens(played(KeptCacheSampler(model, TOKENIZER, **options))) == tokens(
        played(TransformersSampler(model, TOKENIZER, **options))
    )


def test_a_model_that_drops_keys_is_refused_by_name():
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, sliding_window=8
        )
    )
    with pytest.raises(ValueError, match="MistralForCausalLM has layers whose cache is a DynamicSlidingWindowLayer"):
        KeptCacheSampler(model, TOKENIZER)
