"""The linter: each kind of fault is found where it is, and what looks like it and is none is not."""

import json
import os
import subprocess
import sys

import pytest
from datasets import Dataset, IterableDataset

from envmask_trl.inspect.lint.findings import Kind
from envmask_trl.inspect.lint.linter import lint
from tests.data.conversations import CLEAN, NUMBER, TEXT, calls, result, row, says, tool, user

WEATHER = tool("weather", ("city",), city=TEXT, days=NUMBER)
ASK, OSLO = user("How warm is Oslo?"), {"city": "Oslo"}


def kinds(*rows, **options):
    """The kinds found in these rows."""
    return {str(kind) for kind in lint(list(rows), **options).counts}


def called(name="weather", **arguments):
    """A whole conversation with one call, and the tools it has."""
    return row(ASK, calls(name, arguments=arguments), result("7"), says("7"), tools=[WEATHER])


def test_a_clean_conversation_has_no_finding():
    report = lint([CLEAN, called(city="Oslo", days=2)])
    assert not report.counts and report.exit_status == 0
    assert report.rows == 2 and report.roles == {"assistant": 4, "user": 2, "tool": 2}


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([user("hi"), {"role": "bot", "content": "a"}], "message 1 has the role 'bot'"),
        ([{"content": "hi"}, says("a")], "message 0 has the role None"),
        ([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "a"}], "message 0 has the role None"),
        ([user("hi"), says("a"), {"role": "system", "content": "s"}], "message 2 is a system message"),
        ([user("hi"), says("a"), says("b")], "messages 1 and 2 are both the assistant's"),
        ([user("hi"), user("ho"), says("b")], "messages 0 and 1 are both the user's"),
        ([says("a")], "no user message"),
        ([user("hi")], "no assistant message in messages"),
        ([*CLEAN["messages"][:3], user("and now?"), says("b")], "the user speaks in message 3"),
    ],
)
def test_roles_that_are_missing_unknown_or_out_of_turn(messages, found):
    (finding,) = lint([row(*messages)], ignore=["content"]).examples[Kind.ROLES]
    assert found in finding.found and finding.row == 0


def test_a_system_message_first_and_a_prompt_without_an_answer_are_no_faults():
    assert not kinds(row({"role": "system", "content": "s"}, ASK, says("a")))
    assert not kinds({"prompt": [ASK]}) and not kinds({"prompt": "How warm is Rome?"})


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([ASK, calls("a"), says("7")], "missing-tool-turn"),
        ([ASK, calls("a", "b"), user("well?"), says("7")], "missing-tool-turn"),
        ([ASK, calls("a", "b"), result("1"), says("7")], "call-without-result"),
        ([ASK, calls("a"), result("1"), result("2"), says("7")], "result-without-call"),
        ([ASK, says("let me see"), result("1"), says("7")], "result-without-call"),
        ([ASK, result("1"), says("7")], "result-without-call"),
        ([ASK, calls("a"), result("1")], "ends-in-tool"),
        ([ASK, calls("a")], "ends-in-call"),
        ([ASK, calls("a", ids=("x",)), result("1", tool_call_id="y"), says("7")], "ids"),
        ([ASK, calls("a", "b", ids=("x", "x")), result("1"), result("2"), says("7")], "ids"),
        ([ASK, calls("a"), result("1", name="b"), says("7")], "ids"),
    ],
)
def test_calls_and_results_that_do_not_pair(messages, kind):
    assert kinds(row(*messages), ignore=["roles"] if messages[1]["role"] == "tool" else []) == {kind}


@pytest.mark.parametrize(
    "messages",
    [
        [ASK, calls("a", "b"), result("1"), result("2"), says("7")],
        [ASK, calls("a", "b", ids=("x", "y")), result("1", tool_call_id="x"), result("2", tool_call_id="y"), says("7")],
        [ASK, calls("a"), result("1"), calls("a"), result("2"), says("7")],
        [ASK, says('<tool_call>{"name": "a", "arguments": {}}</tool_call>'), result("1"), says("7")],
    ],
)
def test_calls_and_results_that_pair(messages):
    assert not kinds(row(*messages))


@pytest.mark.parametrize(
    ("conversation", "kind", "found"),
    [
        (called("wether", city="Oslo"), "unknown-tool", "a call of 'wether'"),
        (called(), "arguments", "weather is called with {}"),
        (called(city=7), "arguments", "weather is called with {'city': 7}"),
        (called(city="Oslo", town="Oslo"), "arguments", "weather is called with 'town'"),
    ],
)
def test_calls_that_the_tools_of_the_row_or_the_given_ones_do_not_allow(conversation, kind, found):
    without = {key: value for key, value in conversation.items() if key != "tools"}
    for report in (lint([conversation]), lint([without], tools=[WEATHER])):
        assert set(report.counts) == {kind} and report.examples[Kind(kind)][0].found == found
    assert not kinds(without)
    assert kind in kinds({**conversation, "tools": json.dumps([WEATHER])})


def test_a_function_is_a_tool_as_its_schema_is():
    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        return city

    good, bad = (row(ASK, calls("weather", arguments={key: "x"}), result("7"), says("7")) for key in ("city", "town"))
    report = lint([good, bad], tools=[weather])
    assert [finding.row for finding in report.examples[Kind.ARGUMENTS]] == [1]


def test_each_row_is_held_against_its_own_tools():
    rows = [row(user(name), calls(name), result("1"), says("1"), tools=[tool(name)]) for name in ("a", "b", "a")]
    rows[2]["tools"] = [tool("b")]
    report = lint(rows, ignore=["duplicate"])
    assert report.counts == {Kind.UNKNOWN_TOOL: 1} and report.examples[Kind.UNKNOWN_TOOL][0].row == 2


def test_a_tool_that_takes_anything_is_not_asked_what_it_takes():
    schema = tool("a", x=TEXT)
    schema["function"]["parameters"]["additionalProperties"] = True
    assert not kinds(row(ASK, calls("a", arguments={"y": 1}), result("1"), says("7"), tools=[schema]))


@pytest.mark.parametrize("schema", [{"type": "function"}, "a", tool("a", x={"type": "dict"})])
def test_a_tool_whose_schema_is_none(schema):
    assert "tool-schema" in kinds(row(ASK, says("a"), tools=[schema]))
    with pytest.raises(ValueError, match="tools: "):
        lint([CLEAN], tools=[schema])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "", "tool_calls": [{"name": "a", "arguments": '{"x": 1'}]},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "a", "arguments": "[1]"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "a"}]},
        {"role": "assistant", "content": "", "tool_calls": ["a"]},
        {"role": "assistant", "content": "", "tool_calls": "a()"},
        says('<tool_call>{"name": "a", "arguments": {}</tool_call>'),
        says('<tool_call>{"name": "a", "argum'),
    ],
)
def test_calls_that_cannot_be_read(message):
    assert kinds(row(ASK, message, result("1"), says("7"))) == {"broken-call"}


def test_broken_lines_are_named_by_number_and_the_others_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(CLEAN).encode(), b'{"messages": [}', b"", b'"text"', b'{"x": NaN}', b"\xff", b"[" * 100_000]
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))  # with a byte order mark, without a last line break
    found = {}
    for number in range(2, 8):
        (tmp_path / "one.jsonl").write_bytes(b"\n" * (number - 1) + lines[number - 1])
        found |= {f.row: f.found for f in lint(tmp_path / "one.jsonl").examples.get(Kind.BROKEN_JSON, ())}
    assert found.keys() == {2, 4, 5, 6, 7}
    assert "Expecting value at character 14" in found[2] and "NaN" in found[5] and "not UTF-8" in found[6]
    report = lint(path)
    assert report.counts == {Kind.BROKEN_JSON: 5} and report.rows == 6 and report.roles["user"] == 1


@pytest.mark.parametrize("values", [{"text": "hi"}, {"messages": []}, {"messages": "hi"}, {"messages": [None]}, {}])
def test_rows_without_a_conversation(values):
    assert kinds(values) & {"columns", "broken-json"}


@pytest.mark.parametrize("column", ["messages", "conversation", "conversations"])
def test_the_conversation_is_found_in_any_usual_column_also_as_json_text(column):
    bad = [ASK, calls("a"), says("7")]
    assert kinds({column: bad}) == kinds({column: json.dumps(bad)}) == {"missing-tool-turn"}


def test_a_prompt_and_its_completion_are_one_conversation():
    assert kinds({"prompt": [ASK], "completion": [calls("a"), says("7")]}) == {"missing-tool-turn"}
    assert not kinds({"prompt": "How warm is Oslo?", "completion": "7"})


def test_the_same_conversation_twice_whatever_its_other_columns_and_the_order_of_its_keys():
    turned = [dict(reversed(message.items())) for message in CLEAN["messages"]]
    report = lint([{**CLEAN, "id": 1}, called(city="Oslo"), {"messages": turned, "id": 2}, {**CLEAN, "id": 3}])
    assert [(f.row, f.found) for f in report.examples[Kind.DUPLICATE]] == [
        (2, "the same conversation as 0"),
        (3, "the same conversation as 2"),
    ]
    assert not kinds({"prompt": [ASK], "seed": 1}, {"prompt": [ASK], "seed": 2})


def test_every_reader_finds_the_same(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [row(ASK, says("7")), row(ASK, says("")), row(says("7"))] * 500
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    whole = Dataset.from_list(rows)
    iterable = IterableDataset.from_generator(lambda: iter(rows))
    expected = lint(rows).counts
    assert expected == {Kind.CONTENT: 500, Kind.ROLES: 500, Kind.DUPLICATE: 1497}
    for data in (tmp_path / "rows.jsonl", str(tmp_path / "rows.parquet"), whole, iterable, (each for each in rows)):
        assert lint(data).counts == expected


def test_the_report_counts_every_finding_and_shows_the_first_with_what_to_do(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row(ASK, calls("a"), says(str(number)))) for number in range(10)))
    report = lint(path)
    assert report.counts == {Kind.MISSING_TOOL_TURN: 10} and len(report.examples[Kind.MISSING_TOOL_TURN]) == 3
    text = str(report)
    assert report.exit_status == 1
    assert "10 rows; messages: 20 assistant, 10 user" in text and "10 findings" in text
    assert "line 1: message 1 has 1 calls, and message 2 is the assistant's" in text
    assert "expected a tool message per call; add the results or drop the row" in text


def test_ignored_kinds_are_neither_counted_nor_part_of_the_exit_status():
    assert lint([row(ASK, calls("a"))], ignore=["ends-in-call"]).exit_status == 0
    with pytest.raises(ValueError, match="'ends', which is no kind of finding; expected any of broken-json, columns"):
        lint([CLEAN], ignore=["ends"])


@pytest.mark.parametrize(
    ("data", "options", "error", "match"),
    [
        ("no.jsonl", {}, FileNotFoundError, "no.jsonl does not exist"),
        (os.curdir, {}, ValueError, "is a folder"),
        ({"train": []}, {}, ValueError, "data is a dict; expected a path"),
        ([CLEAN], {"max_length": 5}, ValueError, "and a tokenizer to count"),
    ],
)
def test_what_cannot_be_linted_is_refused_in_one_sentence(data, options, error, match):
    with pytest.raises(error, match=match):
        lint(data, **options)


def test_memory_does_not_grow_with_the_rows(tmp_path):
    code = (
        "import resource, sys; from envmask_trl.inspect.lint.linter import lint; lint(sys.argv[1]);"
        "assert 'torch' not in sys.modules; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for number in (10, 20_000):
        path = tmp_path / f"{number}.jsonl"
        with path.open("w") as file:
            for each in range(number):
                file.write(
                    json.dumps(row(user(f"question {each}" + " filler" * 100), says(""))) + "\n"
                )  # 17 MB of rows
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 4000  # KiB
