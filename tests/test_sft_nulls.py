"""Arrow fills structs with the keys of other rows: those nulls are never learned, and nulls that were meant stay."""

import json

import pytest
from datasets import Dataset

from envmask_trl import mask_dataset, mask_observations
from envmask_trl.sft.arrow import restored_value, without_nulls

from .tiny import tiny_tokenizer, user


def weather(city: str, where: dict | None = None) -> str:
    """The weather now.

    Args:
        city: name of a city
        where: what to look at
    """
    return city


def flat(name, **arguments):
    return {"name": name, "arguments": arguments}


def nested(name, **arguments):
    return {"type": "function", "function": flat(name, **arguments)}


def conversation(call):
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [*user("?"), called, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "a"}]


def tokenizer_of_any_call():
    """Shows flat calls too, and each tool's schema."""
    tokenizer = tiny_tokenizer()
    loop = "{%- for call in message.tool_calls or [] -%}"
    either = "{%- for each in message.tool_calls or [] -%}{%- set call = {'function': each.function or each} -%}"
    shown = tokenizer.chat_template.replace(loop, either).replace("tool.function.name", "(tool | tojson)")
    tokenizer.chat_template = shown
    return tokenizer


def calls_learned(rows):
    learned = [tiny_tokenizer().decode([label for label in labels if label != -100]) for labels in rows["labels"]]
    return [text.partition('"arguments": ')[2].partition("}\n</tool_call>")[0] for text in learned]


@pytest.mark.parametrize(
    ("calls", "written"),
    [
        ((flat("weather", city="Oslo"), flat("calc", expression="1")), ('{"city": "Oslo"}', '{"expression": "1"}')),
        ((flat("weather", city="Oslo"), flat("now")), ('{"city": "Oslo"}', "{}")),
        ((nested("weather", city="Oslo"), flat("calc", expression="1")), ('{"city": "Oslo"}', '{"expression": "1"}')),
        (
            (nested("weather", where={"lo": 1}), nested("weather", where={"hi": {"is": 2}})),
            ('{"where": {"lo": 1}}', '{"where": {"hi": {"is": 2}}}'),
        ),
        (
            (nested("weather", where=[{"lo": 1}]), nested("weather", where=[{"hi": 2}, {"lo": 3}])),
            ('{"where": [{"lo": 1}]}', '{"where": [{"hi": 2}, {"lo": 3}]}'),
        ),
    ],
)
def test_no_null_of_another_rows_key_is_learned_in_flat_and_nested_calls(calls, written):
    dataset = Dataset.from_list([{"messages": conversation(call)} for call in calls])
    assert "None" in str(dataset["messages"][:])
    rows, _ = mask_dataset(dataset, tokenizer_of_any_call(), tools=[weather])
    assert calls_learned(rows) == list(written)


def test_a_call_that_has_no_arguments_under_that_name_is_dropped_and_not_learned_as_empty():
    call = {"function": {"name": "weather", "parameters": {"city": "Oslo"}}}
    rows = mask_observations({"messages": [conversation(call)]}, tokenizer=tiny_tokenizer(), keep_problems=True)
    assert rows["problem"] == ["not_a_rollout: a call must have 'arguments'"]


NULLABLE = [
    *({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"nullable": True}),
    *({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "default": None}, {"const": None}),
    {"enum": ["C", None]},
]


@pytest.mark.parametrize("unit", NULLABLE, ids=str)
def test_a_null_stays_where_the_schema_allows_it_at_any_depth(unit):
    inner = {"type": "object", "properties": {"unit": unit, "city": {"type": "string", "default": ""}}}
    schema = {"properties": {"where": {"anyOf": [{"type": "array", "items": inner}, {"type": "null"}]}, "unit": unit}}
    value = {"where": [{"unit": None, "city": None}, None], "unit": None, "other": None}
    assert restored_value(value, schema) == {"where": [{"unit": None}, None], "unit": None}


def test_json_text_keeps_all_its_nulls():
    schema = {"name": "weather", "parameters": {"properties": {"city": {"type": "string", "x-note": None}}}}
    called = {"function": {"name": "weather", "arguments": '{"city": null, "where": {"lo": null}}'}}
    batch = {"messages": [conversation(called)], "tools": [json.dumps([{"function": schema}])]}
    rows = mask_observations(batch, tokenizer=tokenizer_of_any_call())
    assert calls_learned(rows) == ['{"city": null, "where": {"lo": null}}']
    assert '"x-note": null' in tiny_tokenizer().decode(rows["input_ids"][0])


def test_a_default_that_arrow_filled_in_is_none_and_its_argument_is_not_learned():
    """Another tool's parameter of the same name has one."""
    filled = {"type": "integer", "default": None}
    assert without_nulls({"properties": {"limit": filled}}) == {"properties": {"limit": {"type": "integer"}}}
    schema = nested("listing")["function"] | {"parameters": {"type": "object", "properties": {"limit": filled}}}
    batch = {"messages": [conversation(nested("listing", limit=None))], "tools": [[{"function": schema}]]}
    assert calls_learned(mask_observations(batch, tokenizer=tokenizer_of_any_call())) == ["{}"]


def test_a_schema_in_structs_keeps_a_null_default_and_loses_other_rows_keys():
    unit = {"type": "string", "default": None, "enum": ["C", None], "description": None, "items": None}
    schema = {"parameters": {"properties": {"unit": unit, "default": None, "const": None}, "required": None}}
    kept = {"type": "string", "default": None, "enum": ["C", None]}
    assert without_nulls(schema) == {"parameters": {"properties": {"unit": kept}}}
