"""What is run of what the model wrote, in which order, and what it is told about it."""

import json
import time

import pytest

from envmask_trl import (
    CallStatus,
    ParsedTurn,
    RolloutLimits,
    ScriptedSampler,
    StopReason,
    ToolCall,
    ToolRunner,
    load_rollouts,
    run_rollouts,
    save_rollouts,
)

from .scripted_turns import ANSWER, CALL, PROMPT, call, ids, play, text, tokenizer


def test_calls_of_all_rollouts_overlap():
    """64 rollouts with a 0.2 s tool; one after another they would take 12.8 s."""

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
    """A slow async tool called before a fast sync one."""
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
    """No tool runs on a parse failure, the model is told and may try again."""
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


DEEP = "[" * 3000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"city": ' + DEEP + "]" * 3000 + "}", "recursion depth"),
        ('{"city": ' + DEEP, "recursion depth"),
        ('{"city": ' + "[" * 500 + "]" * 500 + "}", "nested more than 64 deep"),
        ('{"city": ' + '{"a": ' * 70 + "1" + "}" * 70 + "}", "nested more than 64 deep"),
        ('{"city": "Oslo \\ud83d"}', "half of a character"),
        ('{"\\udc00": "Oslo"}', "half of a character"),
        ('{"city": ' + "1" * 5000 + "}", "Exceeds the limit"),
    ],
    ids=["closed", "open", "copied", "objects", "value", "key", "number"],
)
@pytest.mark.parametrize("own", [False, True], ids=["template", "own parser"])
def test_arguments_that_python_cannot_hold_or_write_down_end_one_turn_and_not_the_run(own, arguments, reason, tmp_path):
    """JSON allows any depth and half a character: the one exhausts the stack, the other no file takes."""
    scripts = [[call(arguments=arguments), ANSWER], [call(), ANSWER]]
    limits = RolloutLimits(max_completion_length=20_000)
    first, second = play(*scripts, limits=limits, parser=reads_calls if own else None)
    assert first.tool_results[0].status is CallStatus.MALFORMED and reason in first.tool_results[0].content
    assert first.stop_reason is StopReason.ANSWERED and second.tool_results[0].status is CallStatus.OK
    save_rollouts([first, second], tmp_path / "rows.parquet")
    assert len(load_rollouts(tmp_path / "rows.parquet")) == 2


@pytest.mark.parametrize("name", ["wea\\ud83dther", "\\udfff"])
def test_a_name_with_half_a_character_is_answered_as_unreadable(name):
    (row,) = play([call(name), ANSWER])
    assert row.tool_results[0].status is CallStatus.MALFORMED and row.stop_reason is StopReason.ANSWERED


def reads_calls(turn: str) -> ParsedTurn:
    """A parser of the same format that guards against nothing."""
    if not turn.startswith("<tool_call>"):
        return ParsedTurn("answer", {"role": "assistant", "content": turn})
    function = json.loads(turn.removeprefix("<tool_call>").removesuffix("</tool_call><|im_end|>"))
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    return ParsedTurn("calls", message, (ToolCall("", function["name"], function["arguments"]),))


@pytest.mark.parametrize(
    "call_json",
    ["{}", '{"name": "weather"}', '{"arguments": {}}', '{"name": null, "arguments": {}}', "[1]", "3", "null"],
)
def test_a_call_without_name_or_arguments_is_answered_as_unreadable(call_json):
    """The chat template would raise on such a call and end all rollouts."""
    (row,) = play([f"<tool_call>{call_json}</tool_call><|im_end|>", ANSWER])
    assert row.tool_results[0].status is CallStatus.MALFORMED and row.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize("arguments", ["null", "[]", '"x"', "3"])
def test_arguments_that_are_not_an_object_are_refused_without_python_in_the_text(arguments):
    """It is JSON, but `tool(**arguments)` would raise a TypeError, whose text is no help to a model."""
    (row,) = play([CALL % ("weather", arguments), ANSWER])
    (result,) = row.tool_results
    assert result.status is CallStatus.BAD_ARGUMENTS and row.stop_reason is StopReason.ANSWERED
    assert "NoneType" not in result.content and "Traceback" not in result.content


@pytest.mark.parametrize("name", ["ghost", "Weather", "weather ", "x" * 10_000])
def test_an_invented_tool_name_is_answered_with_the_names_there_are(name):
    """A look-up by name would raise a KeyError and end all rollouts."""
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
    """Python's repr writes None, True and single quotes, and some templates raise on what is no string."""

    def weather(city: str):
        """The weather now.

        Args:
            city: name of a city
        """
        return value

    (row,) = play([call(), ANSWER], tools=[weather])
    assert text(row) == content


def test_one_hung_tool_costs_the_others_no_more_than_its_deadline():
    """It would stop the whole batch, for hours where the tool has no timeout."""

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
