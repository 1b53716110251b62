"""Reading a turn: once for equal texts, and never shared between the rollouts that said them."""

from envmask_trl import ScriptedSampler, TemplateParser, run_rollouts
from envmask_trl.training.rows import completion_messages

from .tiny import add, answer, call, tiny_tokenizer, user


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
