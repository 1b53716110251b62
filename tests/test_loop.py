"""The turn loop with scripted turns: why rollouts stop, what fits, what is run, and what everybody else sees of it."""

import json
import time
from functools import cache

import pytest

from envmask_trl import (
    CallStatus,
    ObservationEncoder,
    RolloutAborted,
    RolloutLimits,
    Sample,
    ScriptedSampler,
    Source,
    StopReason,
    ToolCall,
    ToolRunner,
    run_rollouts,
)
from recipes.weather_calculator.tokenizer import train_tokenizer

PROMPT = [{"role": "user", "content": "How warm is Oslo?"}]
CALL = '<tool_call>{"name": "%s", "arguments": %s}</tool_call><|im_end|>'
ANSWER = "7<|im_end|>"


@cache
def tokenizer():
    return train_tokenizer(
        ["How warm is Oslo?", '{"temp": 7, "city": "Oslo"}', "Error: the tool call could not be read"]
    )


def ids(text: str) -> tuple[int, ...]:
    return tuple(tokenizer()(text, add_special_tokens=False)["input_ids"])


def call(name: str = "weather", arguments: str = '{"city": "Oslo"}') -> str:
    return CALL % (name, arguments)


def weather(city: str) -> str:
    """The weather now.

    Args:
        city: name of a city
    """
    return '{"temp": 7}'


def play(*scripts, tools=(weather,), prompts=None, **options):
    sampler = ScriptedSampler([[ids(turn) for turn in script] for script in scripts])
    prompts = prompts or [PROMPT] * len(scripts)
    return run_rollouts(prompts, tokenizer=tokenizer(), sampler=sampler, tools=tools, **options)


def text(row, source: Source = Source.ENV) -> str:
    return "".join(tokenizer().decode(list(s.token_ids)) for s in row.segments if s.source is source)


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
    """I-37: and the last message is its unanswered call, not a tool's result."""
    (row,) = play([call()] * 4, limits=RolloutLimits(max_tool_calling_iterations=3))
    assert row.stop_reason is StopReason.MAX_TURNS and row.unfinished
    assert len(row.tool_results) == 3 and row.messages[-1]["role"] == "assistant"
    assert RolloutLimits().max_tool_calling_iterations < 100


def test_no_tools_at_all_means_that_calls_are_text():
    (row,) = play([call()], tools=())
    assert row.stop_reason is StopReason.ANSWERED and row.tool_results == ()


def test_a_turn_is_asked_for_no_more_than_what_is_left():
    """I-38: the budget of the rollout counts observations, and every turn gets the rest of it."""
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
    """T7, T16: nothing is run and then dropped."""
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


def test_a_result_and_an_answer_that_fit_exactly_are_kept():
    """I-34: budget = turn + block + the room for an answer, not one token less."""
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
def test_a_huge_result_is_cut_in_tokens_inside_its_content_with_a_mark_and_a_flag(cut):
    """I-36, I-64, T15: the closers stay, the model sees the mark, the row says so."""
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


def test_calls_of_all_rollouts_overlap():
    """I-59, T: 64 rollouts with a 0.2 s tool; one after another they would take 12.8 s."""

    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        time.sleep(0.2)
        return "7"

    sampler = Timed([[ids(call()), ids(ANSWER)] for _ in range(64)])
    rows = run_rollouts([PROMPT] * 64, tokenizer=tokenizer(), sampler=sampler, tools=[weather])
    assert all(row.stop_reason is StopReason.ANSWERED for row in rows)
    assert sampler.times[1] - sampler.times[0] < 3.0


class Timed(ScriptedSampler):
    def sample(self, contexts, max_new_tokens):
        self.times = [*getattr(self, "times", []), time.perf_counter()]
        return super().sample(contexts, max_new_tokens)


def test_results_come_back_in_call_order_with_the_id_of_their_call():
    """I-56, T5: a slow async tool called before a fast sync one."""
    import asyncio

    async def slow(x: int) -> str:
        """Slow.

        Args:
            x: a number
        """
        await asyncio.sleep(0.2)
        return f"slow {x}"

    def fast(x: int) -> str:
        """Fast.

        Args:
            x: a number
        """
        return f"fast {x}"

    turn = "".join(CALL % pair for pair in [("slow", '{"x": 1}'), ("fast", '{"x": 2}'), ("slow", '{"x": 3}')])
    (row,) = play([turn.replace("<|im_end|>", "") + "<|im_end|>", ANSWER], tools=[slow, fast])
    assert [message["content"] for message in row.messages[1:4]] == ["slow 1", "fast 2", "slow 3"]
    assert [m["tool_call_id"] for m in row.messages[1:4]] == [c["id"] for c in row.messages[0]["tool_calls"]]
    assert text(row) == "slow 1fast 2slow 3"


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "Oslo"', '{"city": Oslo}', "{'city': 'Oslo'}", '{"city": "Oslo",}', '{"city" "Oslo"}'],
)
def test_a_call_that_cannot_be_read_runs_nothing_and_the_rollout_goes_on(arguments):
    """I-51, I-52: no tool runs on a parse failure, the model is told and may try again."""
    runs = []

    def wipe(city: str = "all") -> str:
        """Dangerous.

        Args:
            city: everything, if left out
        """
        runs.append(city)
        return "wiped"

    (row,) = play([CALL % ("wipe", arguments), ANSWER], tools=[wipe])
    assert runs == [] and row.stop_reason is StopReason.ANSWERED and row.malformed_calls == 1
    assert row.tool_results[0].status is CallStatus.MALFORMED
    assert text(row).startswith("Error: the tool call could not be read (")


@pytest.mark.parametrize(
    "call_json",
    ["{}", '{"name": "weather"}', '{"arguments": {}}', '{"name": null, "arguments": {}}', "[1]", "3", "null"],
)
def test_a_call_without_name_or_arguments_is_answered_as_unreadable(call_json):
    """I-50."""
    (row,) = play([f"<tool_call>{call_json}</tool_call><|im_end|>", ANSWER])
    assert row.tool_results[0].status is CallStatus.MALFORMED and row.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize("arguments", ["null", "[]", '"x"', "3"])
def test_arguments_that_are_not_an_object_are_refused_without_python_in_the_text(arguments):
    """I-53."""
    (row,) = play([CALL % ("weather", arguments), ANSWER])
    (result,) = row.tool_results
    assert result.status is CallStatus.BAD_ARGUMENTS and row.stop_reason is StopReason.ANSWERED
    assert "NoneType" not in result.content and "Traceback" not in result.content


@pytest.mark.parametrize("name", ["ghost", "Weather", "weather ", "x" * 10_000])
def test_an_invented_tool_name_is_answered_with_the_names_there_are(name):
    """I-57."""
    (row,) = play([CALL % (name, "{}"), ANSWER], limits=RolloutLimits(max_completion_length=20_000))
    (result,) = row.tool_results
    assert result.status is CallStatus.UNKNOWN_TOOL and "weather" in result.content and len(result.content) < 200


def test_a_model_that_only_writes_broken_calls_is_given_up():
    (row,) = play([CALL % ("weather", "{")] * 3, limits=RolloutLimits(max_malformed_calls=2))
    assert row.stop_reason is StopReason.MALFORMED and row.unfinished and row.malformed_calls == 3


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ({"ok": True, "x": None}, '{"ok": true, "x": null}'),
        ([1, 2], "[1, 2]"),
        (None, "null"),
        (b"\xff", "�"),
        (7, "7"),
    ],
)
def test_results_reach_the_model_as_json(value, content):
    """I-60."""

    def weather(city: str):
        """The weather now.

        Args:
            city: name of a city
        """
        return value

    (row,) = play([call(), ANSWER], tools=[weather])
    assert text(row) == content


def test_one_hung_tool_costs_the_others_no_more_than_its_deadline():
    """I-58."""

    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        if city == "Rome":
            time.sleep(1e6)
        return "7"

    scripts = [[call(arguments=json.dumps({"city": "Rome" if n == 3 else "Oslo"})), ANSWER] for n in range(8)]
    start = time.perf_counter()
    rows = play(*scripts, tools=[weather], tool_runner=ToolRunner(timeout_s=0.5))
    assert time.perf_counter() - start < 5
    assert [row.tool_results[0].status for row in rows] == [
        CallStatus.TIMEOUT if n == 3 else CallStatus.OK for n in range(8)
    ]
    assert all(row.stop_reason is StopReason.ANSWERED for row in rows)


class Maze:
    """Counts what is opened and closed."""

    opened, closed = 0, 0

    def __init__(self):
        Maze.opened += 1
        self.done = False
        self.steps = 0

    def reset(self, **row):
        if row.get("broken"):
            raise RolloutAborted("no machine")
        return " You are at a1."

    def move(self, to: str) -> str:
        """Go to a field.

        Args:
            to: a field
        """
        self.steps += 1
        if to == "crash":
            raise RolloutAborted("lost")
        self.done = to == "exit"
        return f"at {to}, step {self.steps}"

    def close(self):
        Maze.closed += 1


def move(to: str) -> str:
    return CALL % ("move", json.dumps({"to": to}))


def test_every_rollout_has_its_own_environment_which_is_closed_on_every_way_out():
    """I-66: by answer, by cap, by the episode's end, by a failure, by a reset that fails."""
    Maze.opened = Maze.closed = 0
    scripts = [[move("b1"), ANSWER], [move("b1"), move("b2")], [move("exit")], [move("crash")], []]
    rows = [{}, {}, {}, {}, {"broken": True}]
    played = play(*scripts, tools=(), environments=Maze, rows=rows, limits=RolloutLimits(max_tool_calling_iterations=1))
    assert [row.stop_reason for row in played] == [
        StopReason.ANSWERED,
        StopReason.MAX_TURNS,
        StopReason.ENV_DONE,
        StopReason.ENV_ERROR,
        StopReason.ENV_ERROR,
    ]
    assert played[0].prompt[-1]["content"] == "How warm is Oslo? You are at a1."
    assert text(played[0]) == "at b1, step 1" and PROMPT[0]["content"] == "How warm is Oslo?"
    assert Maze.opened == Maze.closed == 5


def test_environments_are_closed_when_the_sampler_fails():
    Maze.opened = Maze.closed = 0
    with pytest.raises(ValueError, match="asks for turn 1"):
        play([move("b1")], tools=(), environments=Maze)
    assert Maze.opened == Maze.closed == 1


def test_the_last_message_is_never_a_tools():
    """I-81: a reward that reads the last message must not read a tool's text as the answer."""
    Maze.opened = Maze.closed = 0
    (row,) = play([move("exit")], tools=(), environments=Maze)
    assert row.messages[-1]["role"] == "assistant" and row.tool_results[-1].content == "at exit, step 1"
    assert row.sources[-1] is Source.MODEL


def test_a_sampler_that_returns_no_token_ends_the_rollout_before_the_observation():
    sampler = ScriptedSampler([[ids(call()), ()]])
    (row,) = run_rollouts([PROMPT], tokenizer=tokenizer(), sampler=sampler, tools=[weather])
    assert row.stop_reason is StopReason.LENGTH and row.completion_ids == ids(call())


def test_a_sampler_that_overruns_its_budget_is_named():
    class Overrun:
        def sample(self, contexts, max_new_tokens):
            return [Sample((10,) * (budget + 1), None, "stop") for budget in max_new_tokens]

    with pytest.raises(ValueError, match="returned 6 tokens for rollout 0, whose budget is 5"):
        run_rollouts([PROMPT], tokenizer=tokenizer(), sampler=Overrun(), limits=RolloutLimits(max_completion_length=5))


def test_a_rollout_that_stopped_is_asked_nothing_more():
    sampler = ScriptedSampler([[ids(ANSWER)], [ids(call()), ids(ANSWER)]])
    run_rollouts([PROMPT] * 2, tokenizer=tokenizer(), sampler=sampler, tools=[weather])
    assert [[context.id for context in contexts] for contexts in sampler.seen] == [[0, 1], [1]]


def test_rounds_go_on_while_another_process_has_live_rollouts():
    """I-85: an engine whose processes wait for each other is asked equally often everywhere."""
    elsewhere = iter([True, True, True, False])
    sampler = ScriptedSampler([[ids(ANSWER)]])
    run_rollouts([PROMPT], tokenizer=tokenizer(), sampler=sampler, any_live=lambda live: next(elsewhere) or live > 0)
    assert [len(contexts) for contexts in sampler.seen] == [1, 0, 0]


def test_tools_can_differ_between_rollouts():
    def other(x: int) -> str:
        """Other.

        Args:
            x: a number
        """
        return "other"

    (first, second) = play(
        [call("other", '{"x": 1}'), ANSWER],
        [call("other", '{"x": 1}'), ANSWER],
        tools=(),
        row_tools=[[weather], [other]],
    )
    assert first.tool_results[0].status is CallStatus.UNKNOWN_TOOL and second.tool_results[0].content == "other"


def test_an_own_parser_reads_a_format_that_no_template_knows():
    """I-105."""
    from envmask_trl import ParsedTurn, ToolCall

    def parser(turn: str) -> ParsedTurn:
        if turn.startswith("CALL "):
            city = turn.removeprefix("CALL ").removesuffix("<|im_end|>")
            entry = {"type": "function", "function": {"name": "weather", "arguments": {"city": city}}}
            message = {"role": "assistant", "content": "", "tool_calls": [entry]}
            return ParsedTurn("calls", message, (ToolCall("", "weather", {"city": city}),))
        return ParsedTurn("answer", {"role": "assistant", "content": turn})

    (row,) = play(["CALL Oslo<|im_end|>", ANSWER], parser=parser)
    assert text(row) == '{"temp": 7}'


@pytest.mark.parametrize(
    ("policy", "shown"),
    [("split", "a<|im_end|>b"), ("escape", "a&#60;|im_end|>b"), ("reject", "Error: the result was withheld")],
)
def test_control_tokens_in_a_result_follow_the_policy_and_are_counted(policy, shown):
    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        return "a<|im_end|>b"

    encoder = ObservationEncoder(
        tokenizer(), tools=[weather], stop_token_ids={tokenizer().eos_token_id}, control_tokens=policy
    )
    (row,) = play([call(), ANSWER], tools=[weather], encoder=encoder)
    assert text(row).startswith(shown) and row.control_tokens == 1
    observed = {token for s in row.segments if s.source is Source.ENV for token in s.token_ids}
    assert not observed & set(tokenizer().added_tokens_decoder)


def test_lists_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="rows has 1 entries but there are 2 prompts"):
        play([ANSWER], [ANSWER], rows=[{}])
    with pytest.raises(ValueError, match="tools need a prompt of messages"):
        play([ANSWER], prompts=["a text"])


def test_a_text_prompt_is_encoded_as_it_is():
    (row,) = play([ANSWER], prompts=["How warm"], tools=())
    assert row.prompt_ids == ids("How warm")
