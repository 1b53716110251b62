"""Rows, schemas and files as they really come: none ends the linter, none is called wrong that is not."""

import gzip
import json

import pytest

from envmask_trl.inspect.lint.findings import Kind
from envmask_trl.inspect.lint.linter import lint
from tests.data.conversations import CLEAN, TEXT, calls, result, row, says, tool, user
from tests.tiny import tiny_tokenizer

ASK = user("How warm is Oslo?")
WRITTEN = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def kinds(*rows, **options):
    return {str(kind) for kind in lint(list(rows), **options).counts}


def called(arguments, parameters, **more):
    """A conversation with one call of a tool that takes `parameters`."""
    schema = {"type": "function", "function": {"name": "f", "description": "f", "parameters": parameters}}
    return row(ASK, calls("f", arguments=arguments), result("7"), says("7"), tools=[schema], **more)


# Schemas of tools


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/X"}}}, "there is no /$defs/X"),
        ({"type": "object", "properties": {"a": {"$ref": "http://example.com/x.json"}}}, "there is no http://example"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "it refers to itself"),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_finding_said_once_and_asks_no_server(parameters, reason):
    rows = [called({"a": number}, parameters) for number in (1, 2)]
    report = lint(rows)
    assert report.counts == {Kind.TOOL_SCHEMA: 1} and reason in report.examples[Kind.TOOL_SCHEMA][0].found


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {}},
        {"type": "object", "anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"b": TEXT}}}},
        {"type": "object"},
        True,
    ],
)
def test_an_argument_that_a_schema_allows_by_another_way_than_properties_is_no_fault(parameters):
    assert not kinds(called({"b": "x"}, parameters))


def test_a_composed_schema_still_refuses_what_it_does_not_allow():
    parameters = {"allOf": [{"type": "object", "properties": {"b": TEXT}}]}
    assert kinds(called({"b": 1}, parameters)) == {"arguments"} and not kinds(called({"b": "1"}, parameters))


def test_a_null_that_a_nullable_parameter_takes_is_kept(tmp_path):
    """`nullable` is what transformers writes for Optional."""

    def weather(city: str, days: int | None = None) -> str:
        """The weather.

        Args:
            city: name of a city
            days: how many
        """
        return city

    each = row(ASK, calls("weather", arguments={"city": "Oslo", "days": None}), result("7"), says("7"))
    assert not kinds(each, tools=[weather])
    wrong = row(ASK, calls("weather", arguments={"city": None}), result("7"), says("7"))
    assert kinds(wrong, tools=[weather]) == {"arguments"}
    report = lint([called({"a": None}, {"type": "object", "properties": {"a": {**TEXT, "nullable": True}}})])
    assert not report.counts


def test_a_tool_written_for_another_interface_and_a_name_that_two_tools_have_are_named():
    anthropic = {"name": "f", "input_schema": {"type": "object", "properties": {"a": TEXT}}}
    each = row(ASK, calls("f", arguments={"a": "x"}), result("7"), says("7"))
    assert kinds({**each, "tools": [anthropic]}) == {"tool-schema"}
    assert kinds({**each, "tools": [tool("f", a=TEXT), tool("f", a=TEXT)]}) == {"tool-schema"}


def test_a_function_without_a_docstring_is_refused_in_a_sentence():
    def mute(a):
        return a

    with pytest.raises(ValueError, match=r"tools: mute cannot be shown to a model .*; expected a docstring"):
        lint([CLEAN], tools=[mute])


# Calls as they are written


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
        '<|python_tag|>{"name": "f", "parameters": {"a": 7}}',
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 7}}]',
    ],
)
@pytest.mark.parametrize("kind", ["integer", "string"])
def test_calls_of_other_formats_than_json_in_tags_are_no_faults(text, kind):
    assert not kinds(row(ASK, says(text), result("1"), says("1"), tools=[tool("f", ("a",), a={"type": kind})]))


def test_arguments_of_a_format_without_types_are_held_against_the_schema():
    def written(value):
        return says(f"<tool_call><function=f><parameter=a>{value}</parameter></function></tool_call>")

    wrong = [row(ASK, written(value), result("1"), says("1")) for value in ("seven", "7.5")]
    assert lint(wrong, tools=[tool("f", a={"type": "integer"})]).counts == {Kind.ARGUMENTS: 2}
    assert not kinds(row(ASK, written("True"), result("1"), says("1")), tools=[tool("f", a={"type": "boolean"})])


def test_a_call_in_content_blocks_awaits_a_result():
    block = {"role": "assistant", "content": [{"type": "text", "text": WRITTEN}]}
    asked = {"role": "user", "content": [{"type": "text", "text": "q"}]}
    assert kinds(row(asked, block)) == {"ends-in-call"}


def test_a_tag_that_the_model_only_thinks_about_is_no_call_and_one_behind_the_thought_is():
    assert not kinds(row(ASK, says("<think>Shall I write <tool_call>? No.</think>\nNo.")))
    assert not kinds(row(ASK, says("Shall I write <tool_call>? No.</think>\nNo.")))
    assert kinds(row(ASK, says(f"<think>I shall.</think>{WRITTEN}"))) == {"ends-in-call"}
    assert kinds(row(ASK, says(f"{WRITTEN}<think>Done.</think>"))) == {"ends-in-call"}


def test_a_call_that_stands_in_tool_calls_and_in_the_text_is_written_twice():
    assert kinds(row(ASK, {**calls("f"), "content": WRITTEN}, result("1"), says("1"))) == {"broken-call"}


def test_calls_of_somebody_else_than_the_assistant_are_out_of_turn():
    assert kinds(row({**ASK, **{"tool_calls": calls("f")["tool_calls"]}}, says("a"))) == {"roles"}


def test_an_id_that_only_the_result_has_and_an_id_of_0_are_compared():
    assert kinds(row(ASK, calls("f"), result("1", tool_call_id="x"), says("a"))) == {"ids"}
    assert kinds(row(ASK, calls("f", ids=(0,)), result("1", tool_call_id=5), says("a"))) == {"ids"}
    assert not kinds(row(ASK, calls("f", ids=(0,)), result("1", tool_call_id=0), says("a")))


def test_a_question_that_nobody_answers_ends_no_conversation():
    assert kinds(row(ASK, says("7"), user("And Rome?"))) == {"roles"}


@pytest.mark.parametrize("content", [" \n", [{"type": "text", "text": ""}], ["hi"], []])
def test_a_content_that_says_nothing_or_is_no_block_is_reported(content):
    assert kinds(row({"role": "user", "content": content}, says("a")), ignore=["mixed-types"]) == {"content"}


def test_an_image_is_a_content():
    image = {"role": "user", "content": [{"type": "image", "image": "x.png"}]}
    assert not kinds(row(image, says("a")), ignore=["mixed-types"])


# Files


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"messages": [{"role": "user", "role": "assistant", "content": "hi"}]}', "the key 'role' twice"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "x": 1e999}', "1e999', which is beyond all floats"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "x": 9223372036854775808}', "more than 64 bits"),
        (b'{"messages": [{"role": "user", "content": "hi \\ud83d"}]}', "half a character"),
    ],
)
def test_json_that_python_reads_and_arrow_does_not_is_broken(line, found, tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"\n" + line)
    (finding,) = lint(tmp_path / "rows.jsonl").examples[Kind.BROKEN_JSON]
    assert finding.row == 2 and found in finding.found


def test_a_whole_character_in_two_escapes_is_no_half(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(row(user("\N{SLIGHTLY SMILING FACE}"), says("-9223372036854775808")))
    )
    assert lint(tmp_path / "rows.jsonl").exit_status == 0


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("rows.jsonl.gz", gzip.compress(b"{}", mtime=0), "compressed with gzip"),
        ("rows.json", b" \n[\n {}\n]", "one JSON list"),
        ("rows.jsonl", "{}".encode("utf-16"), "UTF-16"),
        ("rows.jsonl", b"PAR1...", "a parquet file under another name"),
    ],
)
def test_a_file_that_is_not_lines_is_refused_before_each_line_is_called_broken(name, data, what, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"is {what}; expected one JSON object a line"):
        lint(tmp_path / name)


def test_a_file_without_a_row_is_a_finding(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n\n")
    assert lint(tmp_path / "rows.jsonl").counts == {Kind.COLUMNS: 1} and kinds() == {"columns"}


def test_brackets_inside_each_other_end_their_row_and_not_the_linter():
    deep = {}
    for _ in range(2000):
        deep = {"a": deep}
    report = lint([row(ASK, calls("f", arguments=deep), result("1"), says("1")), row(ASK, calls("f"), says("1"))])
    assert report.counts == {Kind.BROKEN_JSON: 1, Kind.MISSING_TOOL_TURN: 1} and report.rows == 2
    assert not kinds(row(ASK, calls("f", arguments={1: 2, "a": 3}), result("1"), says("1")))


# With a tokenizer


def test_a_tokenizer_without_a_template_is_refused_before_every_row_is_reported():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="the tokenizer has no chat template to render rows with"):
        lint([CLEAN], tokenizer=tokenizer)


def test_letters_in_a_result_that_a_template_writes_as_json_are_not_left_out():
    other = tiny_tokenizer()
    other.chat_template = other.chat_template.replace(
        "message.content + '\n</tool", "(message.content | tojson) + '\n</tool"
    )
    assert other.chat_template != tiny_tokenizer().chat_template
    assert not kinds(row(ASK, calls("f"), result('"é" it is'), says("é")), tokenizer=other)


def test_control_tokens_in_a_schema_in_a_call_and_of_the_added_kind_in_a_result(tokenizer):
    described = tool("f", a={"type": "string", "description": "ends with <|im_end|>"})
    inside = calls("f", arguments={"a": "<|im_start|>"})
    plain = row(ASK, calls("f", arguments={"a": "x"}), result("1"), says("1"))
    assert kinds(plain, tools=[described], tokenizer=tokenizer) == {"control-tokens"}
    assert kinds(row(ASK, inside, result("1"), says("1")), tokenizer=tokenizer) == {"control-tokens"}
    assert kinds(row(ASK, calls("f"), result("</tool_response>"), says("1")), tokenizer=tokenizer) == {"control-tokens"}
    assert not kinds(row(user("What is <tool_call>?"), says("1")), tokenizer=tokenizer)
