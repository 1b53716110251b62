"""Calls in a prompt's examples are shown as they were written, not with the nulls that Arrow fills in."""

from datasets import Dataset

from envmask_trl.training.shown_prompts import shown_prompts

from .tiny import add, answer, user
from .trained_scripts import make_trainer


def weather(city: str, unit: str | None = None) -> str:
    """The weather.

    Args:
        city: A city.
        unit: A unit.
    """
    return city


def example(name, arguments, question="q"):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [*user("for example"), turn, {"role": "tool", "content": "3"}, *user(question)]


def test_nulls_of_other_rows_are_taken_out_and_those_that_a_tool_knows_stay():
    prompts = [example("weather", {"city": "Oslo", "unit": None}), example("add", {"a": 1, "b": 2}), user("q")]
    rows = list(Dataset.from_dict({"prompt": prompts})["prompt"])
    assert rows[1][1]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2, "city": None, "unit": None}
    before = repr(rows)
    first, second, third = shown_prompts(rows, [weather, add])
    assert first[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo", "unit": None}
    assert second[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2}
    assert second[1]["content"] is None and third == user("q") and repr(rows) == before
    assert shown_prompts(["a text"], [add]) == ["a text"]


def test_a_trainer_shows_an_example_as_it_was_written(tmp_path):
    prompts = [example("add", {"a": 1, "b": 2}, "0"), example("weather", {"city": "Oslo"}, "1")] * 2
    tools, reward = [add, weather], lambda completions, **_: [0.0] * 4
    trainer = make_trainer(tmp_path, reward, [[answer("3")]] * 4, prompts=prompts, tools=tools, shuffle_dataset=False)
    trainer.train()
    shown = trainer.processing_class.decode(list(trainer.trajectories[0].prompt_ids))
    assert '{"name": "add", "arguments": {"a": 1, "b": 2}}' in shown
