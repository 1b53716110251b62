"""Samplers: every row under its own budget, up to its own stop token, and none with another row's turn."""

from types import SimpleNamespace

import pytest
import torch

from envmask_trl import (
    Context,
    KeptCacheSampler,
    RolloutLimits,
    Sample,
    ScriptedSampler,
    StopReason,
    TransformersSampler,
    run_rollouts,
)
from envmask_trl.rollout.transformers_sampler import cut_at_stop, find_stop_token_ids
from envmask_trl.training.trl_sampler import TRLSampler, with_logprobs

from .tiny import add, answer, call, tiny_model, tiny_tokenizer, user

CONTEXTS = [Context(0, (5, 6, 7, 8, 9)), Context(1, (10,)), Context(2, (11, 12, 13))]


def sampler(**options):
    tokenizer = tiny_tokenizer()
    return TransformersSampler(tiny_model(tokenizer), tokenizer, **options)


def test_greedy_turns_do_not_depend_on_which_rows_share_the_batch():
    greedy = sampler(do_sample=False)
    together = greedy.sample(CONTEXTS, [6, 6, 6])
    alone = [greedy.sample([context], [6])[0] for context in CONTEXTS]
    assert together == alone and all(len(sample.token_ids) <= 6 for sample in together)


def test_each_row_has_its_own_budget():
    samples = sampler(do_sample=False).sample(CONTEXTS, [2, 5, 1])
    assert [len(sample.token_ids) for sample in samples] == [2, 5, 1]
    assert {sample.finish_reason for sample in samples} == {"length"}


def test_the_seed_decides_what_is_sampled():
    drawn = sampler(temperature=2.0)
    torch.manual_seed(1)
    first = drawn.sample(CONTEXTS, [6, 6, 6])
    torch.manual_seed(1)
    assert drawn.sample(CONTEXTS, [6, 6, 6]) == first
    assert drawn.sample(CONTEXTS, [6, 6, 6]) != first


def test_sampling_leaves_the_model_in_the_mode_it_was_in():
    drawn = sampler()
    drawn.model.train()
    drawn.sample(CONTEXTS[:1], [2])
    assert drawn.model.training


def test_what_follows_the_stop_token_is_never_kept():
    """Any id of the set stops a row."""
    assert cut_at_stop([10, 18, 11, 19], 4, {18, 19}) == Sample((10, 18), None, "stop")
    assert cut_at_stop([10, 11, 12], 2, {19}) == Sample((10, 11), None, "length")
    assert cut_at_stop([10, 19], 2, {19}) == Sample((10, 19), None, "stop")


def test_stop_tokens_are_those_of_the_tokenizer_and_of_the_models_generation_config():
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.generation_config.eos_token_id = [3, 4]
    assert find_stop_token_ids(tokenizer, model) == {3, 4, tokenizer.eos_token_id}
    model.generation_config.eos_token_id = None
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="neither the tokenizer nor the model"):
        find_stop_token_ids(tokenizer, model)


def test_a_turn_that_ends_with_the_second_stop_token_is_whole_and_gets_no_closer():
    """TRL counts such a row as cut."""
    tokenizer = tiny_tokenizer()
    other_end = tokenizer.pad_token_id
    ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    turn = [*ids(call("add", a=1, b=2))[:-1], other_end]
    script = ScriptedSampler([[turn, ids(answer("3"))]])
    (row,) = run_rollouts(
        [user("1 + 2?")],
        tokenizer=tokenizer,
        sampler=script,
        tools=[add],
        stop_token_ids={other_end, tokenizer.eos_token_id},
    )
    assert row.stop_reason is StopReason.ANSWERED and row.tool_results[0].content == "3"
    assert tokenizer.eos_token_id not in row.completion_ids[len(turn) : len(turn) + 1]


def test_a_real_model_plays_whole_rollouts():
    tokenizer = tiny_tokenizer()
    rows = run_rollouts(
        [user(f"row {n}") for n in range(3)],
        tokenizer=tokenizer,
        sampler=sampler(),
        tools=[add],
        limits=RolloutLimits(max_completion_length=12),
    )
    assert all(0 < len(row.completion_ids) <= 12 for row in rows)


class Engine:
    """The engine of one process among two: it slices its results by process, as TRL does with a vLLM server's."""

    eos_token_ids = (19,)
    engine_waits = True
    args = SimpleNamespace(generation_kwargs=None)

    def __init__(self, *, rank: int, other_rows: int):
        self.rank, self.other_rows = rank, other_rows
        self.asked: list[int] = []

    def max_over_processes(self, *values):
        return tuple(max(value, other) for value, other in zip(values, (self.other_rows, 4), strict=True))

    def sample_turn(self, prompts, *, max_new_tokens):
        self.asked.append(len(prompts))
        theirs = [[90 + n] for n in range(self.other_rows)]
        gathered = theirs + prompts if self.rank else prompts + theirs
        turns = [[prompt[-1], 19] for prompt in gathered]
        mine = slice(self.rank * len(prompts), (self.rank + 1) * len(prompts))
        return turns[mine], [[-0.1, -0.2]] * len(prompts)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("other_rows", [3])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_no_process_gets_the_turns_of_another_when_they_have_unequal_numbers_of_rows(rank, rows, other_rows):
    """The slice is rank * rows of *this* process, so all must ask for equally many."""
    engine = Engine(rank=rank, other_rows=other_rows)
    contexts = [Context(n, (1, 40 + n)) for n in range(rows)]
    samples = TRLSampler(engine).sample(contexts, [4] * rows)
    assert [sample.token_ids for sample in samples] == [(40 + n, 19) for n in range(rows)]
    assert engine.asked == [3]


def test_a_turn_that_an_engine_ended_at_a_stop_string_of_its_own_is_whole():
    engine = Engine(rank=0, other_rows=0)
    engine.args = SimpleNamespace(generation_kwargs={"stop": ["a text, not a token"]})
    engine.sample_turn = lambda prompts, max_new_tokens: ([[10, 11], [10, 11], [10, 19]], [None] * 3)
    contexts = [Context(n, (1,)) for n in range(3)]
    samples = TRLSampler(engine).sample(contexts, [4, 2, 4])
    assert [sample.finish_reason for sample in samples] == ["stop", "length", "stop"]
    del engine.args  # then it ran into a limit of its own
    samples = TRLSampler(engine).sample(contexts, [4, 2, 4])
    assert [sample.finish_reason for sample in samples] == ["length", "length", "stop"]


def test_logprobs_are_cut_where_their_ids_were_and_an_unknown_one_is_nan():
    sample = with_logprobs(Sample((10, 19), None, "stop"), [-0.1, None, -0.3])
    assert sample.logprobs[0] == -0.1 and sample.logprobs[1] != sample.logprobs[1] and len(sample.logprobs) == 2


@pytest.mark.parametrize("kind", [KeptCacheSampler, TransformersSampler])
def test_a_name_in_place_of_a_model_or_tokenizer_is_told_with_the_remedy(kind):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    for given, said in (
        (("gpt2", tokenizer), r"model is 'gpt2', .*; write AutoModelForCausalLM.from_pretrained\('gpt2'\)"),
        ((model, "gpt2"), r"tokenizer is 'gpt2', .*; write AutoTokenizer.from_pretrained\('gpt2'\)"),
        ((tokenizer, model), "model is a .*, expected a transformers model; pass the model first"),
    ):
        with pytest.raises(ValueError, match=said):
            kind(*given)


@pytest.mark.parametrize("kind", [KeptCacheSampler, TransformersSampler])
def test_an_id_that_the_embedding_has_no_row_for_is_no_index_error_in_a_step(kind):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    kind(model, tokenizer)
    rows = len(tokenizer)
    tokenizer.add_tokens(["<one>", "<two>"])
    said = f"has ids up to {rows + 1}, .* has {rows} rows .*; call model.resize_token_embeddings.{rows + 2}."
    with pytest.raises(ValueError, match=said):
        kind(model, tokenizer)
    model.resize_token_embeddings(rows + 2)
    kind(model, tokenizer)
