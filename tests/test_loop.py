"""The turn loop with scripted turns: environments, samplers, parsers, and what everybody else sees of a rollout."""

import json

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
    run_rollouts,
)

from .scripted_turns import ANSWER, CALL, PROMPT, call, ids, play, text, tokenizer, weather


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
    """By answer, by cap, by the episode's end, by a failure, by a reset that fails."""
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
    """A reward that reads the last message must not read a tool's text as the answer."""
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
    """An engine whose processes wait for each other is asked equally often everywhere."""
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
    from envmask_trl import ParsedTurn

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
        play([ANSWER], [ANSWER], rows=[{}], tools=(), environments=Maze)
    with pytest.raises(ValueError, match="tools need a prompt of messages"):
        play([ANSWER], prompts=["a text"])


def test_a_text_prompt_is_encoded_as_it_is():
    (row,) = play([ANSWER], prompts=["How warm"], tools=())
    assert row.prompt_ids == ids("How warm")
