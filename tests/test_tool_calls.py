"""Reading a turn: once for equal texts, and never shared between the rollouts that said them."""

import pytest

from envmask_trl import ScriptedSampler, TemplateParser, run_rollouts
from envmask_trl.training.rows import completion_messages

from .real_tokenizers import chat_template
from .tiny import add, answer, call, tiny_tokenizer, user


class ByNumber:
    def __init__(self):
        self.looked_up = []

    def reset(self, **row):
        pass

    def look(self, key: int) -> str:
        """Look it up.

        Args:
            key: its key
        """
        self.looked_up.append(key)
        return "found"


class ByText(ByNumber):
    def look(self, key: str) -> str:
        """Look it up.

        Args:
            key: its key
        """
        return super().look(key)


class AlsoByText(ByText):
    """Its tool is the one of its parent."""


def test_equal_turns_are_read_once_and_a_tool_that_changes_its_arguments_changes_its_own(monkeypatch):
    tokenizer = tiny_tokenizer()
    parser = TemplateParser(tokenizer, tools=[add], stop_token_ids=[tokenizer.eos_token_id])
    read, parse = [], tokenizer.parse_response
    monkeypatch.setattr(tokenizer, "parse_response", lambda text, **k: read.append(text) or parse(text, **k))
    first, second = parser(call("add", a=[1], b=2)), parser(call("add", a=[1], b=2))
    assert first == second and len(read) == 1
    first.calls[0].arguments["a"].append(3)
    first.message["tool_calls"].clear()
    assert parser(call("add", a=[1], b=2)) == second and second.calls[0].arguments == {"a": [1], "b": 2}


def test_the_end_of_turn_token_is_no_part_of_a_thought_that_was_never_closed():
    tokenizer = tiny_tokenizer()
    parser = TemplateParser(tokenizer, tools=[add], stop_token_ids=[tokenizer.eos_token_id])
    turn = parser("<think>it is 5<|im_end|>")
    assert turn.message == {"role": "assistant", "content": "", "reasoning_content": "it is 5"}


def test_what_a_reward_does_with_a_message_stays_out_of_the_trajectory():
    tokenizer = tiny_tokenizer()
    turns = [tokenizer(text)["input_ids"] for text in (call("add", a=[1], b=2), answer("3"))]
    (row,) = run_rollouts([user("q")], tokenizer=tokenizer, sampler=ScriptedSampler([turns]), tools=[add])
    completion_messages(row)[0]["tool_calls"][0]["function"]["arguments"]["a"].append("more")
    assert row.messages[0]["tool_calls"][0]["function"]["arguments"]["a"] == [1]


UNTYPED = """<tool_call>
<function=look>
<parameter=key>
007
</parameter>
</function>
</tool_call><|im_end|>"""


@pytest.mark.parametrize("kinds", [(ByNumber, ByText), (ByText, ByNumber)])
@pytest.mark.parametrize("own_parser", [False, True])
def test_arguments_are_typed_by_the_rollouts_own_tool_where_another_has_one_of_the_same_name(kinds, own_parser):
    """A format that writes arguments as bare text: an integer 7, and the text 007."""
    tokenizer, rooms = tiny_tokenizer(), [kind() for kind in kinds]
    tokenizer.chat_template = chat_template("qwen3_5_nothink")
    ids = [tokenizer(turn)["input_ids"] for turn in (UNTYPED, answer("ok"))]
    parser = TemplateParser(tokenizer, tools=[room.look for room in rooms], stop_token_ids=[tokenizer.eos_token_id])
    options = {"environments": rooms, "parser": parser if own_parser else None}
    run_rollouts([user("q")] * 2, tokenizer=tokenizer, sampler=ScriptedSampler([ids, ids]), **options)
    assert {type(room): room.looked_up for room in rooms} == {ByNumber: [7], ByText: ["007"]}


def test_rollouts_whose_tools_are_the_same_functions_share_a_parser():
    """Otherwise members of a group would read the same turn again."""
    parser = TemplateParser(tiny_tokenizer(), tools=[add, ByText().look])
    assert parser.for_tools([add, ByText().look]) is parser and parser.for_tools([AlsoByText().look]) is parser
    other = parser.for_tools([add, ByNumber().look])
    assert other is not parser and other is parser.for_tools([add, ByNumber().look])
