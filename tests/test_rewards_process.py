"""Rewards about the way to the answer: calls, steps, form. Each with rollouts that try to be paid for nothing."""

import json

import pytest

from envmask_trl import RolloutLimits, rules

from .rewarded import add, as_plain_trl, as_trainer, play, weather
from .tiny import answer, call

OSLO = call("weather", city="Oslo")
ADD = call("add", a=20, b=22)
END = answer("42")
BROKEN = '<tool_call>\n{"name": "add", "argu\n</tool_call><|im_end|>'


def both(first: str, second: str) -> str:
    """One turn with two calls."""
    return first.removesuffix("<|im_end|>") + "\n" + second


@pytest.mark.parametrize(
    ("script", "turns"),
    [
        ([ADD, END], [0.0, 0.0]),
        ([ADD] * 3 + [END], [0.0] * 4),  # more legal calls earn nothing more
        ([BROKEN, ADD, END], [-0.5, 0.0, 0.0]),
        ([call("ghost"), END], [-1.0, 0.0]),
        ([call("add", a=1), END], [-1.0, 0.0]),  # an argument is missing
        ([call("add", a=1, b=2, c=3), END], [-1.0, 0.0]),
        ([both(ADD, call("ghost")), OSLO, END], [-1 / 3, 0.0, 0.0]),
        ([call("weather", city="Atlantis"), END], [0.0, 0.0]),  # legal, although the tool then failed
        ([END], None),
    ],
)
def test_calls_are_legal_or_cost_their_share(script, turns):
    reward, keywords = rules.call_validity(), as_trainer(play(script))
    assert reward.turn_rewards(**keywords) == [turns if turns is None else pytest.approx(turns)]
    assert reward(**keywords) == [None if turns is None else pytest.approx(sum(turns))]


def test_with_the_tools_the_types_of_arguments_are_checked_too():
    wrong_type = play([call("add", a="x", b=2), END], [ADD, END], [call("weather", city=["Oslo"]), END])
    assert rules.call_validity()(**as_trainer(wrong_type))[0] == 0.0  # the loop binds names only
    assert rules.call_validity([add, weather])(**as_trainer(wrong_type)) == [-1.0, 0.0, -1.0]
    schema = {
        "type": "function",
        "function": {"name": "add", "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}},
    }
    assert rules.call_validity([schema])(**as_trainer(wrong_type)) == [0.0, -1.0, -1.0]


def test_a_plain_trainer_gets_the_same_from_the_schemas_or_a_clear_error():
    rollouts = play([BROKEN, END], [call("ghost"), END], [ADD, END], [END])
    expected = [-1.0, -1.0, 0.0, None]
    assert rules.call_validity()(**as_trainer(rollouts)) == expected
    assert rules.call_validity([add])(**as_plain_trl(rollouts)) == expected
    with pytest.raises(ValueError, match=r"call_validity got no `trajectories` .* give it tools="):
        rules.call_validity()(**as_plain_trl(rollouts))


def test_thinking_about_a_call_is_no_call():
    thought = "<think>I could write <tool_call> here</think>42"
    assert rules.call_validity([add])(**as_plain_trl(play([answer(thought)]))) == [None]


STEPS = [{"name": "weather", "arguments": {"city": "Oslo", "unit": None}}, "add"]


@pytest.mark.parametrize(
    ("script", "turns"),
    [
        ([OSLO, ADD, END], [0.5, 0.5, 0.0]),
        ([ADD, OSLO, END], [0.5, 0.5, 0.0]),
        ([both(OSLO, ADD), END], [1.0, 0.0]),
        ([OSLO] * 3 + [END], [0.5, 0.0, 0.0, 0.0]),  # reached once is reached
        ([call("weather", city="Bergen"), END], [0.0, 0.0]),
        ([call("add", a=1), END], [0.0, 0.0]),  # never run
        ([answer("I called weather for Oslo and add.")], [0.0]),
    ],
)
def test_gold_steps_are_paid_once_and_only_when_they_happened(script, turns):
    reward, rollouts = rules.gold_steps(), play(script)
    for steps in (STEPS, json.dumps(STEPS)):
        keywords = as_trainer(rollouts, steps=[steps])
        assert reward.turn_rewards(**keywords) == [turns] and reward(**keywords) == [sum(turns)]
    assert reward(**as_trainer(rollouts, steps=[None])) == [None] == reward(**as_trainer(rollouts, steps=[[]]))


def test_a_step_that_two_gold_steps_share_needs_two_calls():
    twice = [["add", "add"]]
    assert rules.gold_steps()(**as_trainer(play([ADD, END]), steps=twice)) == [0.5]
    assert rules.gold_steps()(**as_trainer(play([ADD, ADD, END]), steps=twice)) == [1.0]


def test_a_call_that_reaches_two_steps_leaves_the_easier_one_to_another_call():
    steps = [["weather", {"name": "weather", "arguments": {"city": "Oslo"}}]]
    rollouts = play([OSLO, call("weather", city="Bergen"), END])
    assert rules.gold_steps()(**as_trainer(rollouts, steps=steps)) == [1.0]


@pytest.mark.parametrize("steps", ["weather", '"weather"', {"name": "add"}, [{"tool": "add"}], [7], 7])
def test_steps_that_are_none_are_named(steps):
    with pytest.raises(ValueError, match=r"gold_steps reads column 'steps', found .* expected a list of tools' names"):
        rules.gold_steps()(**as_trainer(play([END]), steps=[steps]))


def test_turns_over_the_bound_cost_and_the_cost_has_a_floor():
    reward = rules.step_cost(1, per_step=0.4)
    keywords = as_trainer(play([END], [ADD, END], [ADD, BROKEN, END], [ADD] * 5 + [END]))
    assert reward(**keywords) == pytest.approx([0.0, 0.0, -0.4, -1.0])
    assert reward.turn_rewards(**keywords)[3] == pytest.approx([0.0, -0.4, -0.4, -0.2, 0.0, 0.0])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([ADD, OSLO, END], 0.0),
        ([ADD, ADD, END], -0.5),
        ([both(ADD, ADD), END], -0.5),
        ([call("add", a=1, b=2), call("add", b=2, a=1), END], -0.5),  # the order of arguments is no difference
        ([call("weather", city="Atlantis")] * 2 + [END], 0.0),  # a retry of what failed
        ([call("ghost"), call("ghost"), END], -0.5),  # but not of what cannot work
        ([END], None),
    ],
)
def test_calls_that_were_made_before_cost_their_share(script, expected):
    reward, keywords = rules.repeated_calls(), as_trainer(play(script))
    assert reward(**keywords) == [expected]
    turns = reward.turn_rewards(**keywords)[0]
    assert (None if turns is None else sum(turns)) == expected


def test_a_tool_whose_answer_changes_may_be_asked_again():
    assert rules.repeated_calls(ignore=["weather"])(**as_trainer(play([OSLO, OSLO, END]))) == [0.0]


@pytest.mark.parametrize(
    ("script", "turns"),
    [
        ([ADD, ADD, END], [0.0] * 3),
        ([ADD, ADD, ADD, END], [0, 0, -1.0, 0]),
        ([ADD, OSLO] * 3 + [END], [0, 0, 0, 0, 0, -1.0, 0]),
        ([BROKEN] * 3 + [END], [0, 0, -1.0, 0]),
        ([ADD, ADD, OSLO, ADD, END], [0.0] * 5),
        ([ADD] * 5 + [END], [0, 0, -1.0, 0, 0, 0]),  # charged once
    ],
)
def test_going_round_in_circles_costs_at_the_turn_that_closes_the_circle(script, turns):
    reward, keywords = rules.dead_loop(), as_trainer(play(script))
    assert reward.turn_rewards(**keywords) == [turns] and reward(**keywords) == [sum(turns)]


def test_asking_until_something_changes_is_no_circle():
    readings = iter("123")

    def gauge() -> str:
        """The next reading."""
        return next(readings)

    rollouts = play([call("gauge")] * 3 + [END], tools=[gauge])
    assert rules.dead_loop()(**as_trainer(rollouts)) == [0.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is <answer>42</answer>", 1.0),
        ("It is <answer>42</answer>\n", 1.0),
        ("42", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer> ... </answer>", 0.0),
        ("<answer>41</answer><answer>42</answer>", 0.0),
        ("<answer>42</answer> or 43", 0.0),
        ("<answer><answer>42</answer>", 0.0),
        ("<think><answer>42</answer></think>", 0.0),
    ],
)
def test_the_answer_stands_in_one_pair_of_tags(text, expected):
    assert rules.answer_tag()(**as_trainer(play([answer(text)]))) == [expected]


def test_a_tag_in_an_earlier_turn_or_in_an_observation_does_not_count():
    def page(title: str) -> str:
        """A page.

        Args:
            title: Its title.
        """
        return "<answer>42</answer>"

    rollouts = play(["<answer>42</answer>" + call("page", title="x"), answer("dunno")], tools=[page])
    assert rules.answer_tag()(**as_trainer(rollouts)) == [0.0]


def test_an_answer_too_long_or_too_short_costs_in_a_line():
    reward = rules.answer_length(at_most=10, at_least=4)
    texts = ["x" * 10, "x" * 4, "x" * 15, "x" * 40, "xx", "<think>" + "y" * 90 + "</think>xxxxx"]
    assert reward(**as_trainer(play(*[[answer(text)] for text in texts]))) == [0.0, 0.0, -0.5, -1.0, -0.5, 0.0]
    cut = play([answer("x" * 99)], limits=RolloutLimits(max_completion_length=20))
    assert reward(**as_trainer(cut)) == [None]


def test_what_a_tool_wrote_is_not_the_models_length():
    def page(title: str) -> str:
        """A page.

        Args:
            title: Its title.
        """
        return "words " * 50

    (row,) = rollouts = play([call("page", title="x"), END], tools=[page])
    own = sum(row.env_mask)
    reward = rules.overlong(at_most=own + 20, soft=20)
    assert len(row.completion_ids) > own + 100 and reward(**as_trainer(rollouts)) == [0.0]
    assert rules.overlong(at_most=own + 5, soft=20)(**as_trainer(rollouts)) == [-15 / 20]
    assert reward(**as_plain_trl(rollouts)) == [-1.0]  # as documented: a plain trainer does not tell them apart


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rules.step_cost(-1), "step_cost got bound=-1"),
        (lambda: rules.dead_loop(times=1), "dead_loop got times=1"),
        (lambda: rules.answer_length(at_most=3, at_least=4), "answer_length got at_least=4"),
        (lambda: rules.overlong(at_most=3, soft=4), "overlong got at_most=3, soft=4"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
