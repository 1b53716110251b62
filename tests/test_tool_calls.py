"""Reading a turn: once for equal texts, and never shared between the rollouts that said them."""

from envmask_trl import TemplateParser

from .tiny import add, call, tiny_tokenizer


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
