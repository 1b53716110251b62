"""What a tool returns, as the text that the model reads."""

import json
from dataclasses import dataclass

import pytest

from envmask_trl.rollout.tool_values import to_content
from envmask_trl.rollout.tools import ToolRunner
from envmask_trl.trajectory import CallStatus

from .running_tools import run


@dataclass
class Place:
    city: str


class Unreadable:
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("as it is\n", "as it is\n"),
        ({"ok": True, "x": None, "ø": 1.5}, '{"ok": true, "x": null, "ø": 1.5}'),
        ([1, 2], "[1, 2]"),
        ((1, "a"), '[1, "a"]'),
        ([], "[]"),
        (3, "3"),
        (True, "true"),
        (None, "null"),
        (b"\xff ok", "\ufffd ok"),
        (bytearray(b"ok"), "ok"),
        (Place("Oslo"), '{"city": "Oslo"}'),
        (1j, "1j"),
        ({"when": 1j}, '{"when": "1j"}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ([{"type": "text", "text": "7 C"}, {"type": "text", "text": ", rain"}], "7 C, rain"),
        ([{"type": "Point", "at": 1}], '[{"type": "Point", "at": 1}]'),
        ([{"type": "text"}], '[{"type": "text"}]'),
        ("lone \ud800", "lone ?"),
    ],
)
def test_every_value_has_one_text(value, content):
    assert to_content(value) == content


def test_ten_megabytes_come_through_whole(runner):
    assert len(run(runner, lambda: "x" * 10_000_000).content) == 10_000_000
    assert len(json.loads(run(runner, lambda: [7] * 1_000_000).content)) == 1_000_000


def test_a_value_that_holds_itself_has_a_text():
    loop: list = []
    loop.append(loop)
    assert to_content(loop) == "[[...]]"


def test_an_image_is_an_error_and_not_a_lost_placeholder(runner):
    result = run(runner, lambda: [{"type": "text", "text": "see"}, {"type": "image", "image": object()}])
    assert result.status is CallStatus.ERROR
    assert result.content.endswith("content block of type 'image'; only 'text' can be shown")


def test_an_object_without_a_text_is_an_error(runner):
    result = run(runner, Unreadable)
    assert (result.status, result.content) == (CallStatus.ERROR, "Error: RuntimeError: no text")


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"retries": -1}, {"max_concurrent": 0}])
def test_a_runner_that_could_run_nothing_cannot_be_made(wrong):
    with pytest.raises(ValueError, match="expected timeout_s > 0"):
        ToolRunner(**wrong)
