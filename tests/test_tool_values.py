"""What a tool returns, as the text that the model reads."""

import asyncio
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from itertools import count
from types import MappingProxyType

import numpy as np
import pytest
import torch

from envmask_trl.rollout.tool_values import to_content
from envmask_trl.rollout.tools import ToolRunner
from envmask_trl.trajectory import CallStatus

from .running_tools import run


@dataclass
class Place:
    city: str


class Sky(Enum):
    GREY = "grey"


class Report:
    """As a pydantic model, or a content block of an MCP client."""

    def __init__(self, **fields):
        self.fields = fields

    def model_dump(self, *, mode):
        assert mode == "json"
        return self.fields


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
        ({(1, 2): 3}, '{"(1, 2)": 3}'),
        ([{"type": "text", "text": "7 C"}, {"type": "text", "text": ", rain"}], "7 C, rain"),
        ([{"type": "Point", "at": 1}], '[{"type": "Point", "at": 1}]'),
        ([{"type": "text"}], '[{"type": "text"}]'),
        ("lone \ud800", "lone ?"),
    ],
)
def test_every_value_has_one_text(value, content):
    assert to_content(value) == content


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (np.float32(1.5), "1.5"),
        (np.bool_(True), "true"),
        ({"x": np.float32(1.5), "y": np.arange(2)}, '{"x": 1.5, "y": [0, 1]}'),
        (torch.tensor([1, 2]), "[1, 2]"),
        ({"loss": torch.tensor(0.5)}, '{"loss": 0.5}'),
        ({"sky": Sky.GREY}, '{"sky": "grey"}'),
        (Report(city="Oslo", temp=None), '{"city": "Oslo", "temp": null}'),
        ({"rows": [Report(a=1)]}, '{"rows": [{"a": 1}]}'),
        ([Report(type="text", text="7 C", annotations=None)], "7 C"),
        ([Place("Oslo")], '[{"city": "Oslo"}]'),
        ({"page": b"abc"}, '{"page": "abc"}'),
        (memoryview(b"abc"), "abc"),
        ({"b", "a"}, '["a", "b"]'),
        ({"seen": frozenset({2})}, '{"seen": [2]}'),
        (deque([1, 2]), "[1, 2]"),
        (MappingProxyType({"a": 1}), '{"a": 1}'),
        ({np.int64(1): 2}, '{"1": 2}'),
        ((n for n in range(3)), "[0, 1, 2]"),
        (map(str, range(2)), '["0", "1"]'),
    ],
)
def test_a_value_that_json_has_a_form_for_is_not_shown_as_python_writes_it(value, content):
    assert to_content(value) == content


@pytest.mark.parametrize("value", [object(), {"handle": object()}, [len, Unreadable]])
def test_the_address_of_an_object_which_is_other_in_each_run_is_not_shown(value):
    assert "0x" not in to_content(value)


def yields():
    yield "Oslo"
    yield {"temp": 7}


async def yields_async():
    yield "Oslo"
    yield {"temp": 7}


async def leaves_a_task():
    return asyncio.create_task(asyncio.sleep(0, ["Oslo", {"temp": 7}]))


def leaves_a_future():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: ["Oslo", {"temp": 7}])


@pytest.mark.parametrize("tool", [yields, yields_async, leaves_a_task, leaves_a_future])
def test_a_tool_that_yields_or_leaves_its_work_for_later_is_run_to_its_end(runner, tool):
    assert run(runner, tool).content == '["Oslo", {"temp": 7}]'


def test_a_generator_without_end_is_an_error_and_not_all_memory(runner):
    result = run(runner, count)
    assert result.status is CallStatus.ERROR and "yielded more than 100000 values" in result.content


def test_the_errors_of_a_task_group_are_told_and_not_only_counted(runner):
    def fail():
        raise ExceptionGroup("unhandled errors in a TaskGroup", [OSError("no route"), ValueError("no city")])

    assert run(runner, fail).content == "Error: OSError: no route; Error: ValueError: no city"


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
