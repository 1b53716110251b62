"""What is handed to rewards and what they return, of every wrong type: one sentence each, never a raw error."""

import time
from functools import partial

import numpy as np
import pytest
import torch

from envmask_trl import Reward, TurnReward, bounded, compose, hacking, rules

from .tiny import user

RIGHT = rules.exact_answer()
REPEATED = rules.repeated_calls()
SAID = [{"role": "assistant", "content": "7"}]
BATCH = {"completions": [SAID, SAID], "answer": ["7", "8"]}


def called(name, arguments, result="ok"):
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [function]}, {"role": "tool", "content": result}]


def nested(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"completions": [None]}, "`completions` has None at rollout 0, expected a text or a list of messages"),
        ({"completions": [SAID[0]]}, "has the dict {'role': 'assistant', 'content': '7'} at rollout 0"),
        ({"completions": [SAID, [{"content": "7"}]]}, "has the dict {'content': '7'} as message 0 of rollout 1"),
        ({"completions": [[None]]}, "has None as message 0 of rollout 0, expected a dict with role and content"),
        ({"completions": 5}, "`completions` is the int 5, expected a list with one entry for each rollout"),
        ({"completions": "7"}, "`completions` is the str '7', expected a list"),
        ({"trajectories": [{"a": 1}]}, "`trajectories` has the dict {'a': 1} at rollout 0, expected a Trajectory"),
        ({"trajectories": 5}, "`trajectories` is the int 5"),
        ({"completions": [SAID], "answer": ["7", "8"]}, "the column 'answer' has 2 entries for 1 rollouts"),
        ({}, "a reward needs `trajectories` or `completions`"),
    ],
)
def test_keywords_that_are_no_rollouts_are_named(columns, sentence):
    with pytest.raises(ValueError) as error:
        RIGHT(**columns)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "column", [["7", "8"], ("7", "8"), np.array(["7", "8"]), np.array([7, 8]), torch.tensor([7, 8])]
)
def test_a_column_may_be_an_array_or_a_tensor(column):
    assert RIGHT(completions=[SAID, SAID], answer=column) == [1.0, 0.0]


@pytest.mark.parametrize(
    "entry", [None, "x", 7, {}, {"function": None}, {"function": "add"}, {"function": {"name": 3}}]
)
def test_a_call_that_a_parser_read_in_part_is_an_illegal_call(entry):
    """Such a message comes from a model: it must not end a run."""
    completion = [{"role": "assistant", "content": "", "tool_calls": [entry]}]
    assert rules.call_validity([{"name": "add"}])(completions=[completion]) == [-1.0]
    assert RIGHT(completions=[completion], answer=["7"]) == [0.0]


def test_arguments_as_json_text_are_those_of_the_object():
    text, decoded = called("add", '{"b": {"c": [1]}, "a": 1}'), called("add", {"a": 1, "b": {"c": [1]}})
    assert REPEATED(completions=[[*text, *decoded, *SAID]]) == [-0.5]
    assert rules.call_validity([{"name": "add", "parameters": {"properties": {"a": {}, "b": {}}}}])(
        completions=[text]
    ) == [0.0]


def test_arguments_nested_without_end_end_no_run():
    deep = [*called("add", {"q": nested(3000)}), *called("add", "[" * 50_000), *SAID]
    for reward in (REPEATED, *(term for term, _ in hacking.detectors())):
        assert reward(completions=[deep], prompts=[user("7?")])[0] in (None, 0.0)
    steps = [[{"name": "add", "arguments": {"q": {"a": 1}}}]]
    assert rules.gold_steps()(completions=[deep], steps=steps) == [0.0]


def test_a_gold_step_reads_nested_arguments_without_the_nulls_of_arrow_and_true_is_no_1():
    steps = [[{"name": "add", "arguments": {"q": {"x": 1, "y": None}}}]] * 3
    made = [{"q": {"x": 1}}, {"q": {"x": True}}, {"q": {"x": 1, "z": 2}}]
    completions = [[*called("add", arguments), *SAID] for arguments in made]
    assert rules.gold_steps()(completions=completions, steps=steps) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            None,
            "reward function 'mine' returned None, expected a list with one number, or None, for each of 2 rollouts",
        ),
        (1.0, "returned the float 1.0, expected a list"),
        ("ab", "returned the str 'ab', expected a list"),
        ({"a": 1, "b": 2}, "returned the dict {'a': 1, 'b': 2}"),
        ({0.0, 1.0}, "returned the set {0.0, 1.0}"),
        (torch.tensor(1.0), "returned the Tensor tensor(1.)"),
        ([1.0], "returned 1 values, expected a list with one number, or None, for each of 2 rollouts"),
        ([1.0] * 3, "returned 3 values"),
        (["0.5", "1"], "gave rollout 0 the str '0.5', expected a number"),
        ([0.5, [1.0]], "gave rollout 1 the list [1.0], expected a number"),
        ([0.5, {}], "gave rollout 1 the dict {}"),
        ([0.5, torch.zeros(2)], "gave rollout 1 the Tensor tensor([0., 0.])"),
        ([0.5, 1j], "gave rollout 1 the complex 1j"),
        ([0.5, float("nan")], "gave rollout 1 nan, outside of its range"),
        ([0.5, float("inf")], "gave rollout 1 inf, outside of its range"),
        ([0.5, 10**400], "gave rollout 1 the int 1000"),
    ],
    ids=str,
)
def test_what_a_function_returns_that_is_no_list_of_numbers_is_named(values, sentence):
    def mine(**columns):
        return values

    with pytest.raises(ValueError) as error:
        bounded(mine, low=0.0, high=1.0)(**BATCH)
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ([None, 1], [None, 1.0]),
        ((True, False), [1.0, 0.0]),
        (np.array([0.5, 1.0]), [0.5, 1.0]),
        ([np.float32(0.5), np.int64(1)], [0.5, 1.0]),
        (torch.tensor([0.5, 1.0]), [0.5, 1.0]),
    ],
    ids=str,
)
def test_a_function_may_return_none_for_a_rollout_or_an_array_for_all(values, read):
    reward = bounded(partial(lambda given, **columns: given, values), low=0.0, high=1.0)
    assert reward(**BATCH) == read and reward.__name__ == "<lambda>"


@pytest.mark.parametrize("value", ["a", "0.5", [0.5], {}, torch.zeros(2)], ids=str)
def test_a_score_that_is_no_number_is_named(value):
    with pytest.raises(ValueError, match=r"reward 'mine' gave rollout 0 the .*, expected a number"):
        Reward(lambda rollout: value, name="mine", low=0, high=1)(**BATCH)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("a", "the str 'a', expected a list with one number for each turn"),
        (0.5, "the float 0.5, expected a list"),
        (["a"], "at turn 0 the str 'a', expected a number"),
        ([None], "at turn 0 None, expected a number"),
        ([0.1, 0.2], "2 turn rewards"),
        ([float("nan")], "nan"),
    ],
)
def test_scores_of_turns_that_are_no_numbers_are_named(values, sentence):
    reward = TurnReward(lambda rollout: values, name="mine", low=0, high=1)
    for ask in (reward, reward.turn_rewards):
        with pytest.raises(ValueError) as error:
            ask(**BATCH)
        assert sentence in str(error.value) and "mine" in str(error.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: compose(None), "compose got None, whose range is unknown"),
        (lambda: compose(rules.exact_answer), r"give a reward such as rules.exact_answer() (called)"),
        (lambda: compose(RIGHT, None), "compose got None as process, expected a list of (reward, weight) pairs"),
        (lambda: compose(RIGHT, REPEATED), "as process, expected a list of (reward, weight) pairs"),
        (lambda: compose(RIGHT, [REPEATED]), "as entry 0 of process, expected a pair (reward, weight)"),
        (lambda: compose(RIGHT, [(REPEATED, 0.1, 2)]), "as entry 0 of process, expected a pair"),
        (lambda: compose(RIGHT, {REPEATED: 0.1}), "as process, expected a list"),
        (lambda: compose(RIGHT, [(0.1, REPEATED)]), "compose got the float 0.1, whose range is unknown"),
        (lambda: compose(RIGHT, [(REPEATED, "0.1")]), "the weight '0.1' for 'repeated_calls', expected a number"),
        (lambda: compose(RIGHT, [(REPEATED, None)]), "the weight None for 'repeated_calls', expected a number"),
        (lambda: compose(RIGHT, [(REPEATED, float("nan"))]), "the weight nan for 'repeated_calls'"),
        (lambda: compose(RIGHT, outcome_weight=float("inf")), "the weight inf for 'exact_answer'"),
        (lambda: compose(RIGHT, discount=None), "discount=None; expected"),
        (lambda: compose(RIGHT, discount="1"), "discount='1'; expected"),
        (lambda: compose(RIGHT, density=["dense"]), "density=['dense']"),
        (lambda: compose(RIGHT, name=None), "a reward has the name None, expected a text"),
        (lambda: bounded(None, low=0, high=1), "bounded got None, expected a function"),
        (lambda: bounded(len, low="0", high=1), "range ['0', 1], expected two finite numbers"),
        (lambda: Reward(None, name="mine", low=0, high=1), "reward 'mine' got None to score with"),
        (lambda: rules.call_validity([7]), "call_validity got the tool the int 7"),
        (lambda: rules.call_validity([lambda x: x]), "which has no JSON schema with a name and parameters"),
        (lambda: rules.call_validity({"name": "f"}), "expected a list of functions or JSON schemas"),
        (lambda: rules.call_validity([{"name": "f", "parameters": {"type": "nonsense"}}]), "which has no JSON schema"),
        (lambda: rules.exact_answer(7), "exact_answer got column=7"),
        (lambda: rules.exact_answer(extract="answer"), "extract='answer'; expected a column's name and a function"),
        (lambda: rules.in_tag(None), "in_tag got None, expected a tag's name"),
        (lambda: rules.number_answer(tolerance=-1), "number_answer got tolerance=-1"),
        (lambda: rules.set_answer(separator=""), "set_answer got separator=''"),
        (lambda: rules.final_state(None), "final_state got None, expected a function"),
        (lambda: rules.step_cost("2"), "step_cost got bound='2'"),
        (lambda: rules.dead_loop(times=2.5), "dead_loop got times=2.5"),
        (lambda: rules.answer_length(at_most="5"), "answer_length got at_least=0, at_most='5'"),
        (lambda: rules.overlong(at_most=None, soft=1), "overlong got at_most=None"),
        (lambda: rules.unit_tests(workers="2"), "unit_tests got workers='2'"),
        (lambda: rules.repeated_calls(ignore="look"), "repeated_calls got ignore='look', expected a list of texts"),
        (lambda: hacking.farmed_calls(allowed=None), "farmed_calls got allowed=None"),
        (lambda: hacking.fake_observation(markers="<obs>"), "fake_observation got markers='<obs>', expected a list"),
        (lambda: hacking.hollow_form(tags="answer"), "hollow_form got tags='answer', expected a list of texts"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_before_anything_is_scored(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_an_async_function_is_refused_where_nobody_awaits_it():
    async def later(**columns):
        return [1.0]

    with pytest.raises(ValueError, match="bounded got an async function, which nobody awaits here"):
        bounded(later, low=0.0, high=1.0)


@pytest.mark.parametrize("gold", [{"a": 7}, [["7"]], b"7", [{"a": 7}]], ids=str)
@pytest.mark.parametrize("rule", [rules.exact_answer, rules.em_answer, rules.f1_answer, rules.number_answer])
def test_a_gold_value_that_is_no_text_or_number_is_named_and_never_compared_by_its_repr(rule, gold):
    said = [{"role": "assistant", "content": str(gold)}]
    with pytest.raises(ValueError, match=r"reads column 'answer', found the .*, expected a text, a number"):
        rule()(completions=[said], answer=[gold])


@pytest.mark.parametrize("rule", [rules.exact_answer, rules.em_answer, rules.f1_answer, rules.number_answer])
def test_a_missing_gold_value_does_not_apply_and_a_missing_alternative_is_none(rule):
    answers = [None, float("nan"), [None, None], [], [None, "7"]]
    assert rule()(completions=[SAID] * 5, answer=answers) == [None, None, None, None, 1.0]
    nobody = [{"role": "assistant", "content": "None"}]
    assert rules.exact_answer()(completions=[nobody], answer=[["7", None]]) == [0.0]


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<answer>", "<tool_call>"])
def test_ten_thousand_tags_that_are_never_closed_take_no_time(tag):
    """Searching the end of each anew takes minutes."""
    start_s = time.perf_counter()
    for reward in (rules.exact_answer(extract=rules.in_tag()), hacking.hollow_form()):
        reward(completions=[[{"role": "assistant", "content": tag * 10_000}]], answer=["7"])
    assert time.perf_counter() - start_s < 3
