"""Answers that only an observation has, and what Arrow does to rows: each found however it is written."""

import json

import pytest
from datasets import Dataset

from envmask_trl.inspect.lint.findings import Kind
from envmask_trl.inspect.lint.linter import lint
from tests.data.conversations import TEXT, calls, result, row, says, tool, user

ASK = user("How warm is Oslo?")


def kinds(*rows, **options):
    return {str(kind) for kind in lint(list(rows), **options).counts}


# Answers that only an observation has


def answered(observation, last, answer, **more):
    return row(ASK, {**calls("search"), **more}, result(observation), says(last), answer=answer)


@pytest.mark.parametrize(
    ("observation", "answer"),
    [
        ("Paris, of course", ["Paris", "City of Light"]),
        ("Paris, of course", {"target": ["Paris"]}),
        ("it is 42", [42]),
        ("Cafe\u0301 Noir", "Caf\u00e9 Noir"),
        ("1,000 people", "1000"),
        ("7.0 degrees", 7),
        ("7 degrees", 7.0),
        ("\u9996\u90fd\u662f\u5317\u4eac\u3002", "\u5317\u4eac"),
        ('{"city": "Z\\u00fcrich"}', "Z\u00fcrich"),
        ('{"text": "two\\nwords"}', "two words"),
        ("costs $5 now", "$5"),
    ],
)
def test_an_answer_written_otherwise_or_one_of_several_is_found_in_the_observation(observation, answer):
    assert kinds(answered(observation, "dunno", answer)) == {"answer-in-observation"}
    assert not kinds(answered(observation, observation, answer)) and not kinds(answered("nothing", "dunno", answer))


@pytest.mark.parametrize(
    ("observation", "answer"),
    [("17.05", 7), ("10,007", 7), ("7000", "7"), ("Zurich", "Z\u00fcrich"), ("x", []), ("x", {})],
)
def test_what_only_looks_like_the_answer_is_none(observation, answer):
    assert not kinds(answered(observation, "dunno", answer))


def test_an_observation_in_tags_is_not_what_the_assistant_says():
    tagged = row(ASK, says("<search>x</search><information>Paris</information><answer>?</answer>"), answer="Paris")
    shown = row(ASK, says("hm"), user("<tool_response>Paris</tool_response>"), says("?"), answer="Paris")
    assert lint([tagged, shown]).counts == {Kind.ANSWER_IN_OBSERVATION: 2}


def test_an_answer_in_a_call_or_in_a_thought_was_said_by_the_model():
    assert not kinds(answered("Paris", "dunno", "Paris", **calls("search", arguments={"q": "Paris"})))
    assert not kinds(answered("Paris", "dunno", "Paris", reasoning_content="Paris?"))


# Arrow


NESTED = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (({"x": {"a": 1}}, {"x": NESTED}), ({"x": {"b": 2}}, {"x": NESTED})),
        (({"x": [{"a": 1}, {"b": 2}]}, {"x": {"type": "array", "items": NESTED}}), ({}, {"y": TEXT})),
        (({"a": "x"}, {"a": {**TEXT, "enum": ["x"]}}), ({"a": "y"}, {"a": TEXT})),
        (({"a": "x"}, {"a": {**TEXT, "const": "x"}}), ({"a": "y"}, {"a": TEXT})),
        (({"default": "x"}, {"default": TEXT}), ({"b": "y"}, {"b": TEXT})),
        (({"enum": "x"}, {"enum": {**TEXT, "minLength": 1}}), ({"enum": "y"}, {"enum": {**TEXT, "maxLength": 9}})),
    ],
    ids=["nested", "items", "enum", "const", "named default", "named enum"],
)
def test_padding_at_any_depth_is_removed_and_the_copy_is_the_original(first, second, tmp_path):
    rows = [
        row(user(name), calls(name, arguments=arguments), result("1"), says("1"), tools=[tool(name, **properties)])
        for name, (arguments, properties) in (("f", first), ("g", second))
    ]
    report = lint(Dataset.from_list(rows), fix=tmp_path / "fixed.jsonl")
    assert set(report.counts) == {Kind.NULL_PADDING}
    assert [json.loads(line) for line in (tmp_path / "fixed.jsonl").read_text().splitlines()] == rows


def test_a_real_null_deep_in_an_argument_is_kept():
    maybe = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}
    each = row(ASK, calls("f", arguments={"x": {"a": None}}), result("7"), says("7"), tools=[tool("f", x=maybe)])
    assert not kinds(each)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ({"a": 1}, {"a": "s"}, "arguments.t.a is text"),
        ([1], ["s"], "arguments.t[] is text"),
        ([{"a": 1}], [{"a": []}], "arguments.t[].a is a list"),
    ],
)
def test_two_types_deep_in_an_argument_are_named(one, other, place):
    rows = [row(user(str(x)), calls("f", arguments={"t": x}), result("1"), says("1")) for x in (one, other)]
    assert lint(rows).examples[Kind.MIXED_TYPES][0].found == place


def test_two_types_in_contents_columns_and_schemas_are_named():
    blocks = row({"role": "user", "content": [{"type": "text", "text": "q"}]}, says("a"))
    assert kinds(row(ASK, says("a")), blocks) == {"mixed-types"}
    assert kinds(row(ASK, says("a"), level=1), row(user("q"), says("a"), level="1")) == {"mixed-types"}
    defaults = [row(user(str(x)), says("1"), tools=[tool("f", a={"default": x})]) for x in ("x", 1)]
    assert kinds(*defaults) == {"mixed-types"}


def test_prompts_that_differ_in_their_number_alone_and_conversations_with_other_tools():
    assert kinds({"prompt": "q", "id": 1}, {"prompt": "q", "id": 2}) == {"duplicate"}
    assert not kinds(row(ASK, says("a"), tools=[tool("f")]), row(ASK, says("a"), tools=[tool("g")]))
