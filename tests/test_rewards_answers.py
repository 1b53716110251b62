"""Answer rewards on hand-made rollouts: what is right, what only looks right, and what a tool said."""

import threading

import pytest

from envmask_trl import Reward, RolloutAborted, RolloutLimits, rules
from envmask_trl.rewards.answer_text import words
from envmask_trl.rewards.answers import in_tag
from envmask_trl.rewards.reading import read_rollouts, split_thinking
from envmask_trl.rewards.stated_numbers import Number, numbers_in

from . import tagged
from .rewarded import add, as_plain_trl, as_trainer, play
from .tiny import answer, call

CORRECT = {
    "exact": rules.exact_answer(),
    "em": rules.em_answer(),
    "f1": rules.f1_answer(),
    "set": rules.set_answer(),
    "number": rules.number_answer(),
}


def said(text: str, gold, reward) -> float | None:
    return reward(completions=[[{"role": "assistant", "content": text}]], prompts=["?"], answer=[gold])[0]


@pytest.mark.parametrize(
    ("kind", "text", "gold", "expected"),
    [
        ("exact", " Oslo\n", "Oslo", 1.0),
        ("exact", "oslo", "Oslo", 0.0),
        ("exact", "It is Oslo", "Oslo", 0.0),
        ("em", "the  OSLO!", "Oslo", 1.0),
        ("em", "Oslo or Bergen", "Oslo", 0.0),
        ("em", "the", "a", 0.0),  # both would be empty once normalised
        ("em", "(A)", "A", 1.0),  # an option's letter is no article
        ("em", "Bergen", ["Oslo", "Bergen"], 1.0),
        ("f1", "the town of Oslo", "Oslo", 0.5),  # town, of, Oslo: precision 1/3, recall 1
        ("f1", "Oslo Oslo Oslo", "Oslo", 0.5),  # repeating is no second hit
        ("f1", "北京市", "北京", 0.8),  # by character: precision 2/3, recall 1
        ("f1", "", "Oslo", 0.0),
        ("set", "b, a", ["a", "b"], 1.0),
        ("set", "a, a, b", "a,b", 1.0),
        ("set", "a, b, c", "a,b", 0.0),
        ("number", "7 °C", 7, 1.0),
        ("number", "共7个", 7, 1.0),
        ("number", "It is 1,234.50.", "1234.5", 1.0),
        ("number", "7, that is 7.0", 7, 1.0),
        ("number", "5 or 6 or 7", 7, 0.0),  # a list of guesses is no answer
        ("number", "5,6,7", 5, 0.0),
        ("number", "3.14.15", 3.14, 0.0),
        ("number", "−7", -7, 1.0),
        ("number", "x7", 7, 0.0),
        ("number", "1e999", 7, 0.0),
        ("number", "nan", 7, 0.0),
        ("number", "seven", 7, 0.0),
    ],
)
def test_an_answer_is_right_or_only_looks_right(kind, text, gold, expected):
    assert said(text, gold, CORRECT[kind]) == pytest.approx(
        expected, abs=0.07 if kind == "f1" and "town" in text else 0
    )


def test_a_set_with_one_item_too_many_costs_what_a_missing_one_costs():
    partial = rules.set_answer(partial=True)
    assert said("a, b, c", "a,b", partial) == pytest.approx(2 / 3)
    assert said("a", "a,b", partial) == pytest.approx(1 / 2)
    assert said("", "a,b", partial) == 0.0


def test_a_number_near_enough_is_right_and_one_further_off_is_not():
    near = rules.number_answer(tolerance=0.01)
    assert said("3.14", 3.1416, near) == 1.0 and said("3.2", 3.1416, near) == 0.0


def test_a_gold_value_that_is_no_number_is_an_error_and_not_a_wrong_answer():
    with pytest.raises(
        ValueError, match="number_answer reads column 'answer', found 'Oslo', expected one finite number"
    ):
        said("7", "Oslo", rules.number_answer())


def test_a_gold_value_of_none_does_not_apply():
    assert said("7", None, rules.exact_answer()) is None


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match=r"exact_answer reads the dataset column 'answer', found \['completions'"):
        rules.exact_answer()(completions=["Oslo"], gold=["Oslo"])


@pytest.mark.parametrize("gold", [r"\frac{1}{2}", "0.5", "$1/2$"])
def test_math_counts_equal_values_in_other_notation(gold):
    assert said(r"so it is $\frac{2}{4}$", gold, rules.math_answer()) == 1.0
    assert said(r"so it is $\frac{3}{4}$", gold, rules.math_answer()) == 0.0
    assert said("no idea", gold, rules.math_answer()) == 0.0


def test_math_works_outside_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(said("$0.5$", r"\frac{1}{2}", rules.math_answer())))
    thread.start()
    thread.join()
    assert found == [1.0]


TOLD = call("read_file", path="answers.txt")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([answer("42")], 1.0),
        ([call("add", a=20, b=22), answer("42")], 1.0),
        ([answer("<think>20 + 22</think>42")], 1.0),
        ([TOLD, answer("dunno")], 0.0),  # only the tool said it
        ([answer("<think>42</think>dunno")], 0.0),
        ([answer("<think>is it 42")], 0.0),  # never stopped thinking
        ([answer("42" + "." * 300)], 0.0),  # cut by the budget: no answer, although it begins with the right one
        ([TOLD] * 4, 0.0),  # it ends with a call after the last allowed round
        ([answer("")], 0.0),
    ],
)
def test_only_what_the_model_says_at_the_end_is_its_answer(script, expected):
    limits = RolloutLimits(max_completion_length=800, max_turn_tokens=100, max_tool_calling_iterations=3)
    rollouts = play(script, limits=limits)
    reward = rules.exact_answer()
    assert reward(**as_trainer(rollouts, answer=["42"])) == [expected]
    if rollouts[0].stop_reason != "length":  # which a plain trainer does not tell
        assert reward(**as_plain_trl(rollouts, answer=["42"])) == [expected]


def test_a_completion_that_ends_in_a_tool_message_has_no_answer():
    """TRL's own loop can end so; the tool's 42 is not the model's."""
    called = {"function": {"name": "add", "arguments": {"a": 20, "b": 22}}, "type": "function"}
    completion = [
        {"role": "assistant", "content": "42", "tool_calls": [called]},
        {"role": "tool", "name": "add", "content": "42"},
    ]
    (rollout,) = read_rollouts({"completions": [completion]})
    assert rollout.answer is None and rollout.unfinished and rollout.turns[0].results[0].content == "42"
    assert rules.exact_answer()(completions=[completion], answer=["42"]) == [0.0]


def test_a_row_that_packing_cut_has_no_answer():
    keywords = as_trainer(play([answer("42")]), answer=["42"])
    assert rules.exact_answer()(**keywords) == [1.0]
    assert rules.exact_answer()(**keywords | {"unfinished": [True]}) == [0.0]


def test_model_texts_stand_in_for_a_text_that_holds_observations():
    keywords = {"completions": ["dunno<tool_response>42</tool_response>42"], "answer": ["42"]}
    assert rules.exact_answer()(**keywords, model_texts=["42"]) == [1.0]
    assert rules.em_answer()(**keywords, model_texts=["dunno"]) == [0.0]


def test_a_failed_environment_says_nothing_about_the_model():
    """I-102: its row gets no reward, not a zero."""

    def broken(city: str) -> str:
        """The weather now.

        Args:
            city: Name of a city.
        """
        raise RolloutAborted("the server is down")

    rollouts = play([call("broken", city="Oslo")], [answer("42")], tools=[broken])
    for reward in (rules.exact_answer(), rules.answer_tag(), rules.dead_loop()):
        assert reward(**as_trainer(rollouts, answer=["42"] * 2))[0] is None
    assert rules.exact_answer()(**as_trainer(rollouts, answer=["42"] * 2)) == [None, 1.0]


def test_the_state_of_the_environment_is_scored_and_not_what_the_model_claims():
    class Lamp:
        lit = False

    keywords = as_trainer(play([answer("The lamp is on.")], [answer("dunno")]))
    dark, lit = Lamp(), Lamp()
    lit.lit = True
    reward = rules.final_state(lambda lamp, rollout: lamp.lit)
    assert reward(**keywords, environments=[dark, lit]) == [0.0, 1.0]
    with pytest.raises(ValueError, match="final_state reads `environments`"):
        reward(**keywords)


def test_a_value_outside_of_its_range_is_an_error():
    """`compose` proves from ranges that process cannot outweigh the outcome, so a range must hold."""
    with pytest.raises(ValueError, match=r"reward 'big' gave rollout 1 2, outside of its range \[0, 1\]"):
        Reward(lambda r: float(len(r.answer)), name="big", low=0, high=1)(completions=["a", "bb"])
    with pytest.raises(ValueError, match="gave rollout 0 nan"):
        Reward(lambda r: float("nan"), name="odd", low=0, high=1)(completions=["a"])
    with pytest.raises(ValueError, match="low < high"):
        Reward(lambda r: 0.0, name="flat", low=1, high=1)


def test_a_trajectory_whose_messages_do_not_show_its_turns_is_refused():
    from dataclasses import replace

    (row,) = play([answer("42")])
    with pytest.raises(ValueError, match="rollout 0 has 1 model turns but 0 assistant messages"):
        rules.exact_answer()(trajectories=[replace(row, messages=())], answer=["42"])


def test_every_result_stands_with_the_call_that_it_answers():
    """Turns with two calls, with none that could be read, and with an unknown tool, in one rollout."""
    two = call("add", a=1, b=2).removesuffix("<|im_end|>") + "\n" + call("weather", city="Oslo")
    (row,) = play([two, '<tool_call>\n{"name": "add", "argu\n</tool_call><|im_end|>', call("ghost"), answer("3")])
    (rollout,) = read_rollouts({"trajectories": [row]})
    assert [[result.status for result in turn.results] for turn in rollout.turns] == [
        ["ok", "ok"], ["malformed"], ["unknown_tool"], [],
    ]  # fmt: skip
    assert [turn.unreadable for turn in rollout.turns] == [False, True, False, False]
    assert rollout.turns[0].answered_calls[0][1].content == "3"


def test_thinking_is_read_once_wherever_the_parser_put_it():
    inside, apart = "<think>20 + 22</think>42", {"content": "42", "reasoning_content": "20 + 22"}
    for message in ({"content": inside}, apart):
        (rollout,) = read_rollouts({"completions": [[{"role": "assistant", **message}]]})
        assert (rollout.turns[0].thinking, rollout.answer, rollout.model_text) == ("20 + 22", "42", inside)


def test_a_rollout_of_the_tag_protocol_is_read_in_the_same_way():
    (row,) = tagged.play([(10, 11, 12), (13, 14, 15)])  # <search>Oslo</search>, <answer>Norway</answer>
    reward = rules.em_answer(extract=in_tag())
    assert reward(trajectories=[row], answer=["Norway"]) == [1.0]
    assert reward(trajectories=[row], answer=["In Norway"]) == [0.0]  # what the document said
    assert rules.gold_steps()(trajectories=[row], steps=[[{"name": "search", "arguments": {"query": "Oslo"}}]]) == [1.0]


def scored(rule, text, gold) -> float | None:
    return rule(completions=[[{"role": "assistant", "content": text}]], answer=[gold])[0]


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("3.2 × 10^-4", 0.00032), (r"3.2 \times 10^{-4}", 0.00032), ("3.2*10**-4", 0.00032), ("10³ m", 1000),
        ("10^{3}", 1000), ("1E+3", 1000), ("minus 7", -7), ("–7", -7), ("−7", -7), ("负7", -7), ("1 234 567", 1234567),
        ("1\u202f234,5 km".replace(",5", ".5"), 1234.5), ("1'234", 1234), ("1_000", 1000), ("1{,}234", 1234),
        ("٤٢", 42), ("٣٫١٤", 3.14), ("４２．５％", "42.5%"), ("50 %", 0.5), ("0.5", "50%"), ("50%", 50),
        ("It is 0.5, that is 50 %.", 0.5), ("50 % (0.5)", "50 %"),
        ("温度是27度", 27),
        ("درجة 27", 27), ("🙂42🙂", 42), ("€12", 12), (r"$\boxed{42}$", 42), (".5", 0.5), ("-0", 0),
    ],
)  # fmt: skip
def test_a_number_is_found_however_it_is_written(text, gold):
    assert scored(rules.number_answer(), text, gold) == 1.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("minus 7", 7), ("3.2 × 10^-4", 3.2), ("1_000", 1), ("1 234", 1), ("50%", 5000), ("42 or 1e999", 42), ("-7", 7),
        ("1.5", 15), ("10^3", 10), ("5–7", 5), ("12:30", 12), ("2024-11-30", 2024), ("1.2.3", 1.2), ("H2O", 2),
        ("0.5 or 50", "50 %"), ("0.5 or 50 %", 50),
    ],
)  # fmt: skip
def test_a_part_of_a_number_and_a_number_among_others_are_no_answer(text, gold):
    assert scored(rules.number_answer(), text, gold) == 0.0


@pytest.mark.parametrize(
    ("rule", "text", "gold", "paid"),
    [
        (rules.em_answer(), "-5", "5", 0.0), (rules.em_answer(), "1.5", "15", 0.0),
        (rules.em_answer(), "−5.0", "-5.0", 1.0),
        (rules.em_answer(), "“Осло”", "осло", 1.0), (rules.em_answer(), "奥斯陆。", "奥斯陆", 1.0),
        (rules.em_answer(), "Ｏｓｌｏ", "oslo", 1.0), (rules.em_answer(), "cafe\u0301", "café", 1.0),
        (rules.em_answer(), "1990–95", "1990-95", 1.0), (rules.exact_answer(), "cafe\u0301", "café", 1.0),
        (rules.set_answer(), "甲、乙", ["乙", "甲"], 1.0), (rules.set_answer(), "ب، أ", ["أ", "ب"], 1.0),
        (rules.set_answer(), "甲，乙", "乙,甲", 1.0), (rules.set_answer(), "-1, 2", ["1", "2"], 0.0),
        (rules.set_answer(), "None, a", ["a", None], 0.0), (rules.set_answer(), "a", [None, "a"], 1.0),
        (rules.set_answer(), "7", 7, 1.0), (rules.set_answer(), "New York, USA", ["New York, USA"], 1.0),
    ],
)  # fmt: skip
def test_other_scripts_are_read_and_a_sign_or_a_point_of_a_number_is_no_punctuation(rule, text, gold, paid):
    assert scored(rule, text, gold) == paid


@pytest.mark.parametrize(("text", "gold"), [(r"\frac12", "1/2"), (r"2\sqrt{2}", r"\sqrt{8}"), (r"\{1,2\}", r"\{2,1\}")])
def test_latex_that_is_all_there_is_needs_no_dollars(text, gold):
    assert scored(rules.math_answer(), text, gold) == 1.0


def test_parts_of_a_text():
    assert split_thinking("<think>a</think>b") == ("a", "b")
    assert split_thinking("a</think>b") == ("a", "b")
    assert split_thinking("<think>a<think>b</think>c</think>d") == ("a<think>bc", "d")
    assert split_thinking("a<think>b") == ("b", "a")
    assert in_tag()("<answer>1</answer> then <answer><answer>2</answer>") == "2" and in_tag()("2") is None
    assert numbers_in("from 10-12, 1e3") == {Number(10.0), Number(12.0), Number(1000.0)}
    assert words("The cat, 北京!") == ["cat", "北", "京"]
    assert add(1, 2) == "3"
