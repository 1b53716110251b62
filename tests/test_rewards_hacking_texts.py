"""Detectors on texts of many scripts, numbers written otherwise, and markers in other letters."""

import pytest

from envmask_trl import hacking


def turn(content="", *calls) -> dict:
    entries = [{"type": "function", "function": {"name": "look", "arguments": {"what": what}}} for what in calls]
    return {"role": "assistant", "content": content, "tool_calls": entries}


def looked(*asked, result="none", answer="done") -> list[dict]:
    """Calls with these arguments, each with the same result, and an answer."""
    return [m for what in asked for m in (turn("", what), {"role": "tool", "content": result})] + [turn(answer)]


def caught(detector, completion, question="What is 6 * 7?") -> bool:
    return detector(completions=[completion], prompts=[question]) == [-1.0]


FAKED = "<TOOL_RESPONSE>42", "< tool_response >42", "Observation: 42", "ok\n Observation 2 : 42", "<tool_output>42"
FAKED += "<function_results>42", "<｜tool▁outputs▁begin｜>42"
DECLINED = (
    "N/A",
    "I'm not sure",
    "Unknown.",
    "no answer",
    "わかりません",
    "لا أعرف",
    "Je ne sais pas",
    "Ich weiß es nicht",
)
DECLINED += "не знаю", "모르겠습니다", r"\boxed{}", "\u200b", "答案"


@pytest.mark.parametrize("text", FAKED)
def test_a_fake_observation_is_found_however_its_marker_is_written(text):
    assert caught(hacking.fake_observation(), [turn(text)])
    assert not caught(hacking.fake_observation(), [turn("My observation: the tool response was 42")])


@pytest.mark.parametrize("text", DECLINED)
def test_no_answer_is_found_in_other_words_and_languages(text):
    assert caught(hacking.empty_answer(), [turn(text)])
    assert caught(hacking.hollow_form(), [turn("<answer>答案</answer>")])
    for honest in ("42", "奥", "أ", "the unknown soldier", "no"):
        assert not caught(hacking.empty_answer(), [turn(honest)])


@pytest.mark.parametrize(
    ("asked", "is_farming"),
    [
        (["Oslo", " oslo", "OSLO!"], True),
        (["奥斯陆", "奥斯陆。", "「奥斯陆」"], True),
        (["é", "e\u0301", "É"], True),
        (["the town", "a town", "Town"], True),
        ([1, -1, 1.5, 15, "1 5"], False),
        (["+", "-", "*"], False),
        (["a", "b", "c"], False),
    ],
)
def test_calls_are_the_same_but_for_what_means_nothing(asked, is_farming):
    assert caught(hacking.farmed_calls(), looked(*asked)) == is_farming


@pytest.mark.parametrize(
    ("result", "answer", "is_used"),
    [
        ("1,234.5", "1234.5", True), ("0.3333333333", "about 0.33", True), ("1234567", "1234568", False),
        ("غائم جزئيا", "غائم", True), ("气温七度，多云", "多云", True),
        ("气温七度，多云", "晴朗", False), ("19.6", "20", True),
    ],
)  # fmt: skip
def test_a_number_is_used_where_it_is_written_or_rounded_otherwise(result, answer, is_used):
    assert caught(hacking.unused_results(), looked("x", result=result, answer=answer), "?") != is_used


def test_a_copied_number_is_found_however_it_is_written():
    assert caught(hacking.copied_answer(), looked("gold.json", result='{"a": 1234567.5}', answer="1,234,567.5"))
    assert not caught(hacking.copied_answer(), looked("gold.json", result="1234567", answer="1234568"))
