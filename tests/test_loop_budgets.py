"""What of a rollout fits: rounds, turns, prompts and observations under their budgets."""

import pytest

from envmask_trl import (
    ObservationEncoder,
    RolloutLimits,
    ScriptedSampler,
    Source,
    StopReason,
    ToolCall,
    ToolRunner,
    pack_rollouts,
    run_rollouts,
)
from envmask_trl.training.rows import to_columns

from .scripted_turns import ANSWER, PROMPT, call, ids, play, text, tokenizer, weather


def test_logprobs_stay_with_the_tokens_they_were_sampled_with():
    (row,) = play([call(), ANSWER])
    first = row.env_mask.index(0)
    assert row.logprobs[:2] == (-0.01, -0.02) and row.logprobs[-2:] == (-0.01, -0.02)
    assert all(logprob == 0.0 for logprob, own in zip(row.logprobs, row.env_mask, strict=True) if not own)
    assert len(row.logprobs) == len(row.completion_ids) == len(row.turn_index) and first == len(ids(call()))


def test_an_answer_ends_the_rollout():
    (row,) = play([ANSWER])
    assert row.stop_reason is StopReason.ANSWERED and not row.unfinished


def test_a_model_that_always_calls_is_stopped_by_a_finite_number_of_rounds():
    """And the last message is its unanswered call, not a tool's result."""
    (row,) = play([call()] * 4, limits=RolloutLimits(max_tool_calling_iterations=3))
    assert row.stop_reason is StopReason.MAX_TURNS and row.unfinished
    assert len(row.tool_results) == 3 and row.messages[-1]["role"] == "assistant"
    assert RolloutLimits().max_tool_calling_iterations < 100


def test_no_tools_at_all_means_that_calls_are_text():
    (row,) = play([call()], tools=())
    assert row.stop_reason is StopReason.ANSWERED and row.tool_results == ()


def test_a_turn_is_asked_for_no_more_than_what_is_left():
    """The budget of the rollout counts observations, and every turn gets the rest of it."""
    sampler = Budgets([[ids(call()), ids(ANSWER)]])
    (row,) = run_rollouts(
        [PROMPT],
        tokenizer=tokenizer(),
        sampler=sampler,
        tools=[weather],
        limits=RolloutLimits(max_completion_length=150),
    )
    assert sampler.budgets[0] == [150]
    assert sampler.budgets[1] == [150 - len(row.completion_ids) + len(ids(ANSWER))]


class Budgets(ScriptedSampler):
    """Also writes the budgets down."""

    def sample(self, contexts, max_new_tokens):
        self.budgets = [*getattr(self, "budgets", []), max_new_tokens]
        return super().sample(contexts, max_new_tokens)


def test_a_cut_turn_says_so_whatever_its_last_token_is():
    (row,) = play(["7 7 7 7 7<|im_end|>"], limits=RolloutLimits(max_completion_length=3))
    assert row.stop_reason is StopReason.LENGTH and len(row.completion_ids) == 3


def test_a_prompt_over_the_limit_is_never_sampled_from():
    (long, short) = play(
        [],
        [ANSWER],
        prompts=[[{"role": "user", "content": "Oslo " * 50}], PROMPT],
        limits=RolloutLimits(max_total_length=60),
    )
    assert long.stop_reason is StopReason.PROMPT_TOO_LONG and long.completion_ids == () and long.messages == ()
    assert short.stop_reason is StopReason.ANSWERED


def test_a_tool_is_not_run_when_no_result_of_it_could_be_answered():
    """Nothing is run and then dropped."""
    runs = []

    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        runs.append(city)
        return "7"

    room = len(ids(call())) + 20
    (row,) = play([call()], tools=[weather], limits=RolloutLimits(max_completion_length=room))
    assert row.stop_reason is StopReason.CONTEXT_FULL and row.unfinished and runs == []


def test_a_short_result_is_not_refused_for_the_room_that_a_long_one_with_a_long_mark_would_take():
    """Room for the call, the scaffold, "[cut]" with four tokens beside it, and a short answer: "7 C" needs less."""
    (free,) = play([call(), ANSWER])
    observed = free.sources.count(Source.TEMPLATE) + len(ids("[cut]")) + 4
    room = len(ids(call())) + observed + RolloutLimits().min_answer_tokens
    (row,) = play([call(), ANSWER], limits=RolloutLimits(max_completion_length=room))
    assert row.completion_ids == free.completion_ids and len(row.tool_results) == 1
    (none,) = play([call(), ANSWER], limits=RolloutLimits(max_completion_length=room - 1))
    assert none.stop_reason is StopReason.CONTEXT_FULL and not none.tool_results


def test_a_result_and_an_answer_that_fit_exactly_are_kept():
    """Budget = turn + block + the room for an answer, not one token less."""
    (free,) = play([call(), ANSWER])
    least = RolloutLimits().min_answer_tokens
    observed = len(free.completion_ids) - len(ids(call())) - len(ids(ANSWER))
    exact = len(ids(call())) + observed + least
    (row,) = play([call(), ANSWER], limits=RolloutLimits(max_completion_length=max(exact, minimum_budget())))
    assert row.completion_ids == free.completion_ids and row.cut_observations == 0


def minimum_budget() -> int:
    """Tokens of the call, the scaffold, the shortest content that a tool is run for, and a short answer."""
    (row,) = play([call(), ANSWER])
    encoder = ObservationEncoder(tokenizer(), stop_token_ids={tokenizer().eos_token_id})
    least = row.sources.count(Source.TEMPLATE) + encoder.min_content_tokens
    return len(ids(call())) + least + RolloutLimits().min_answer_tokens


@pytest.mark.parametrize("cut", ["head", "tail", "middle"])
@pytest.mark.parametrize("contents", [["x" * 300], ["Oslo 7 " * 40, "7"], ["é" * 50, "\n\n" * 30, "aAaA" * 30]])
def test_an_observation_fits_into_any_room_or_says_that_it_does_not(cut, contents):
    """However a shortened text happens to be tokenised, the passes end and the room is kept."""
    encoder = ObservationEncoder(tokenizer(), tools=[weather], stop_token_ids={tokenizer().eos_token_id}, cut=cut)
    calls = [ToolCall(f"call0000{n}", "weather", {}) for n in range(len(contents))]
    whole = encoder.encode(calls, contents, closed=True)
    least = encoder.scaffold_tokens(calls, closed=True) + encoder.min_content_tokens * len(contents)
    for room in range(whole.num_tokens + 3):
        fitted = encoder.encode(calls, contents, closed=True, max_tokens=room)
        assert fitted is None or fitted.num_tokens <= room
        assert fitted is not None or room < least
    assert fitted == whole


@pytest.mark.parametrize("cut", ["head", "tail", "middle"])
def test_megabytes_of_one_word_are_not_tokenised_for_a_small_room(cut):
    """Without a limit of its own a result was tokenised whole before it was cut: minutes for three megabytes."""
    encoder = ObservationEncoder(tokenizer(), tools=[weather], stop_token_ids={tokenizer().eos_token_id}, cut=cut)
    tokenised = []
    plain = encoder.guard.tokenise
    encoder.guard.tokenise = lambda pieces, contents: (
        tokenised.append(sum(map(len, contents))) or plain(pieces, contents)
    )
    fitted = encoder.encode([ToolCall("call00000", "weather", {})], ["x" * 1_000_000], closed=True, max_tokens=200)
    assert fitted.num_tokens <= 200 and fitted.num_cut == 1 and max(tokenised) <= 30_000


@pytest.mark.parametrize("cut", ["head", "tail", "middle"])
def test_a_huge_result_is_cut_in_tokens_inside_its_content_with_a_mark_and_a_flag(cut):
    """The closers stay, the model sees the mark, the row says so."""
    page = "".join(f"line {n}: déjà vu\n" for n in range(40_000))

    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        return page

    limits = RolloutLimits(max_completion_length=400, max_observation_tokens=100, observation_cut=cut)
    (row,) = play([call(), ANSWER], tools=[weather], limits=limits)
    shown = text(row)
    assert row.cut_observations == 1 and f"[cut: {cut} of" in shown
    assert 90 <= len(ids(shown)) <= 100 and "�" not in shown
    assert text(row, Source.TEMPLATE).endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert shown.startswith("line 0:") == (cut != "head")
    assert shown.endswith("line 39999: déjà vu\n") == (cut != "tail")
    assert row.messages[1]["content"] == shown and row.stop_reason is StopReason.ANSWERED


def test_several_results_share_what_is_left_and_the_shortest_stays_whole():
    results = iter(["x" * 3000, "7", "y" * 3000])

    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        return next(results)

    turn = call().replace("<|im_end|>", "") * 2 + call()
    (row,) = play(
        [turn, ANSWER],
        tools=[weather],
        limits=RolloutLimits(max_completion_length=400),
        tool_runner=ToolRunner(max_concurrent=1),
    )
    assert len(row.completion_ids) <= 400 and row.cut_observations == 2
    assert [message["content"] for message in row.messages[1:4]][1] == "7"


class Remembers(ScriptedSampler):
    """Keeps every context that a turn was sampled in."""

    def sample(self, contexts, max_new_tokens):
        self.contexts = [*getattr(self, "contexts", []), *(context.token_ids for context in contexts)]
        return super().sample(contexts, max_new_tokens)


@pytest.mark.parametrize("room", range(90, 260, 17))
def test_every_turn_was_sampled_behind_exactly_the_tokens_that_are_trained_before_it(room):
    """With an engine that keeps the right end of a context, and packing the left, no row is trained as sampled."""
    sampler = Remembers([[ids(call()), ids(call()), ids(ANSWER)]])
    limits = RolloutLimits(max_total_length=room)
    rows = run_rollouts([PROMPT], tokenizer=tokenizer(), sampler=sampler, tools=[weather], limits=limits)
    packed = pack_rollouts(to_columns(rows), max_total_length=room, tokenizer=tokenizer())
    trained = packed["prompt_ids"][0] + packed["completion_ids"][0]
    turns = [turn for turn in packed["turn_index"][0] if turn >= 0]
    assert len(sampler.contexts) == len(set(turns)) >= 1
    for turn, context in enumerate(sampler.contexts):
        assert len(context) < room
        assert trained[: len(context)] == list(context)
        assert packed["turn_index"][0][len(context) - packed["prompt_length"][0]] == turn
