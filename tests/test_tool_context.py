"""A plain function can know which rollout calls it: what it keeps for one never reaches another, nor the model."""

import asyncio
import functools
import time
from typing import Any

import pytest
from transformers.utils import get_json_schema

from envmask_trl import CallStatus, ObservationEncoder, RolloutContext, RolloutLimits, ToolRunner, check_template
from envmask_trl.inspect.lint.tool_schemas import to_schemas
from envmask_trl.rewards.calls import argument_validators
from envmask_trl.rollout.tool_context import hide_context
from envmask_trl.sft.conversations import ConversationReader

from .scripted_turns import ANSWER, PROMPT, call, play, tokenizer
from .trained_scripts import make_trainer


def count(rollout: RolloutContext, word: str) -> str:
    """Counts the calls.

    Args:
        word: anything
    """
    rollout.state["words"] = [*rollout.state.get("words", ()), word]
    return f"{rollout.index}.{rollout.turn} {' '.join(rollout.state['words'])}"


async def count_async(word: str, *, rollout: "RolloutContext | None" = None) -> str:
    """Counts the calls.

    Args:
        word: anything
    """
    assert rollout is not None
    rollout.state["words"] = [*rollout.state.get("words", ()), word]
    await asyncio.sleep(0.02)
    return f"{rollout.index}.{rollout.turn} {' '.join(rollout.state['words'])}"


class Notes:
    def count(self, word: str, rollout: RolloutContext) -> str:
        """Counts the calls.

        Args:
            word: anything
        """
        return count(rollout, word)


def named(tool: Any) -> Any:
    tool.__name__ = "count"
    return tool


TOOLS = {
    "function": count,
    "async": named(functools.wraps(count_async)(functools.partial(count_async))),
    "method": Notes().count,
}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Counts the calls.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "anything"}},
            "required": ["word"],
        },
    },
}


def says(word: str, times: int = 1) -> str:
    return call("count", f'{{"word": "{word}"}}').replace("<|im_end|>", "") * times + "<|im_end|>"


def contents(row) -> list[str]:
    return [result.content for result in row.tool_results]


@pytest.mark.parametrize("kind", TOOLS)
def test_the_counts_of_the_rollouts_of_a_group_stay_apart_over_turns_and_batches(kind):
    tool = TOOLS[kind]
    for _ in range(2):  # a second batch begins at nothing
        first, second = play([says("a", 2), says("b"), ANSWER], [says("x"), ANSWER], tools=[tool])
        assert contents(first) == ["0.0 a", "0.0 a a", "0.1 a a b"]  # one after another, in call order
        assert contents(second) == ["1.0 x"]


@pytest.mark.parametrize("kind", ["function", "async", "method"])
def test_the_model_is_not_shown_the_context(kind):
    shown = get_json_schema(hide_context(TOOLS[kind]))
    shown["function"].pop("return", None)
    assert shown == SCHEMA
    assert hide_context(hide_context(count)).__name__ == "count" and hide_context(print) is print


@pytest.mark.parametrize("arguments", ['{"word": "a", "rollout": {"state": {}}}', '{"rollout": 1}'])
def test_the_model_cannot_set_the_context(arguments):
    (row,) = play([call("count", arguments), ANSWER], tools=[count])
    (result,) = row.tool_results
    assert result.status is CallStatus.BAD_ARGUMENTS and "not known: rollout" in result.content
    assert result.content.startswith("Error: count takes word: str;")


def test_row_tools_have_a_context_too_and_prompts_name_the_group():
    def group(rollout: RolloutContext) -> str:
        """The group."""
        return rollout.prompt[-1]["content"]

    prompts = [PROMPT, [{"role": "user", "content": "Rome?"}]]
    asks = call("group", "{}")
    rows = play([asks, ANSWER], [asks, ANSWER], tools=(), prompts=prompts, row_tools=[[group], [group]])
    assert [contents(row) for row in rows] == [["How warm is Oslo?"], ["Rome?"]]


def test_a_hung_call_with_a_context_holds_up_its_own_rollout_only():
    def hang(word: str, rollout: RolloutContext) -> str:
        """Hangs once.

        Args:
            word: anything
        """
        if rollout.index == 0:
            time.sleep(1e6)
        return "done"

    turn = call("hang", '{"word": "a"}')
    first, second = play(
        [turn, turn, ANSWER], [turn, turn, ANSWER], tools=[hang], tool_runner=ToolRunner(timeout_s=0.4)
    )
    assert contents(second) == ["done", "done"]
    assert contents(first)[1] == "Error: hang was not run, because an earlier call is still at work"


def test_templates_are_checked_and_observations_written_with_such_tools():
    assert check_template(tokenizer(), tools=[count]).trains
    encoder = ObservationEncoder(tokenizer(), tools=[count], stop_token_ids={tokenizer().eos_token_id})
    (row,) = play([says("a"), ANSWER], tools=[count], encoder=encoder, limits=RolloutLimits())
    assert contents(row) == ["0.0 a"]


def of_demonstrations(tool):
    encoder = ConversationReader(tokenizer(), stop_token_ids=[tokenizer().eos_token_id])
    return encoder.setting([tool]).schemas[0]["function"]["parameters"]


OFF_THE_LOOP = {
    "demonstrations": of_demonstrations,
    "rewards": lambda tool: argument_validators([tool])["count"].schema,
    "lint": lambda tool: to_schemas([tool])[0]["function"]["parameters"],
}


@pytest.mark.parametrize("parameters", OFF_THE_LOOP.values(), ids=OFF_THE_LOOP)
def test_the_context_is_no_argument_where_the_tool_is_given_to_something_else_than_the_loop(parameters):
    """Its docstring cannot describe what the model must not know of, so the schema of the raw tool was an error."""
    assert list(parameters(count)["properties"]) == ["word"]


def test_a_trainer_plays_tools_that_take_a_context(tmp_path):
    from .tiny import answer, call

    scripts = [[call("count", word="a"), call("count", word="b"), answer("ok")]] * 4
    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0, 1.0, 0.0, 1.0], scripts, tools=[count])
    trainer.train()
    assert [contents(row) for row in trainer.trajectories] == [[f"{n}.0 a", f"{n}.1 a b"] for n in range(4)]
