"""The tool runner: every call of every rollout gets exactly one result, and nothing that was not legal is run."""

import asyncio
import functools
import time

import pytest

from envmask_trl.rollout.tools import RolloutAborted, ToolJob, ToolRunner
from envmask_trl.trajectory import CallStatus, ToolCall

from .running_tools import async_weather, job, run, run_program, weather


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_tool_raises_is_an_error_result_and_ends_nothing(runner, error, is_async):
    def fail():
        raise error("no such city")

    async def async_fail():
        raise error("no such city")

    result = run(runner, async_fail if is_async else fail)
    assert (result.status, result.content) == (CallStatus.ERROR, f"Error: {error.__name__}: no such city")
    assert run(runner, async_weather, {"city": "Oslo"}).content == "7 C in Oslo"


def test_a_task_that_a_tool_leaves_behind_does_not_end_the_event_loop(runner):
    async def quit():
        raise SystemExit(1)

    async def tool():
        tool.task = asyncio.create_task(quit())
        await asyncio.sleep(0.1)
        return "still here"

    assert run(runner, tool).content == "still here"
    assert isinstance(tool.task.exception(), SystemExit)


def test_an_error_text_is_short_and_has_no_traceback(runner):
    def fail():
        raise RuntimeError("x" * 10_000)

    assert run(runner, fail).content == "Error: RuntimeError: " + "x" * 300


def test_a_tool_that_lost_its_infrastructure_aborts_the_rollout(runner):
    class Sandbox:
        def start(self):
            raise RolloutAborted("the sandbox is gone")

        def stop(self):
            raise AssertionError("runs behind an aborted call")

    sandbox = Sandbox()
    tools = {"start": sandbox.start, "stop": sandbox.stop}
    [results] = runner.run([job("start", "stop", ordered=tools, **tools)])
    assert [result.status for result in results] == [CallStatus.ABORTED] * 2
    assert results[0].content == "Error: RolloutAborted: the sandbox is gone"


def test_the_users_own_ctrl_c_propagates():
    done = run_program("""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        job = ToolJob((ToolCall("0", "sleep", {}),), {"sleep": lambda: time.sleep(1e6)})
        try:
            ToolRunner().run([job])
        except KeyboardInterrupt:
            print("stopped")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


@pytest.mark.parametrize(("retries", "tries", "content"), [(0, 1, "Error: OSError: busy"), (2, 3, "done")])
def test_a_tool_that_raised_is_tried_again_only_when_asked_for(retries, tries, content):
    calls = []

    def flaky(items: list):
        items.append("changed")  # a tool may change its arguments, the rollout's messages stay as the model wrote them
        calls.append(list(items))
        if len(calls) < 3:
            raise OSError("busy")
        return "done"

    arguments = {"items": ["x"]}
    assert run(ToolRunner(retries=retries), flaky, arguments).content == content
    assert calls == [["x", "changed"]] * tries
    assert arguments == {"items": ["x"]}


def test_a_tool_that_answered_is_not_tried_again():
    calls = []
    assert run(ToolRunner(retries=3), lambda: calls.append("once")).status is CallStatus.OK
    assert calls == ["once"]


def test_retries_end_at_the_deadline():
    def fail():
        time.sleep(0.1)
        raise OSError("busy")

    result = run(ToolRunner(timeout_s=0.5, retries=1000), fail)
    assert result.status is CallStatus.TIMEOUT and result.latency_s < 4


@pytest.mark.parametrize("arguments", [None, [], "x", 3, '{"path": ', {"paht": "/tmp"}, {3: 4}])
def test_a_destructive_tool_with_defaults_is_not_run_on_broken_arguments(runner, arguments):
    deleted = []

    def delete(path: str = "/"):
        deleted.append(path)

    [[result]] = runner.run([ToolJob((ToolCall("0", "delete", arguments),), {"delete": delete})])
    assert result.status is CallStatus.BAD_ARGUMENTS
    assert result.content.startswith("Error: ") and "delete takes path: str (optional)" in result.content
    assert deleted == []


@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        ({"town": "Oslo"}, "Error: weather takes city: str, unit: str (optional); missing: city; not known: town"),
        ({}, "Error: weather takes city: str, unit: str (optional); missing: city"),
        ({"city": "Oslo", "day": 1}, "Error: weather takes city: str, unit: str (optional); not known: day"),
        (
            [1],
            "Error: the arguments of weather must be a JSON object, found array; "
            "weather takes city: str, unit: str (optional)",
        ),
    ],
)
def test_wrong_arguments_are_named_without_python_internals(runner, arguments, content):
    assert run(runner, weather, arguments, name="weather").content == content


@pytest.mark.parametrize("name", ["ghost", "Weather", "weather ", "", "x" * 10_000])
def test_an_invented_tool_name_is_answered_with_the_names_that_exist(runner, name):
    [[result]] = runner.run([ToolJob((ToolCall("0", name, {}),), {"calculator": weather, "weather": weather})])
    assert result.status is CallStatus.UNKNOWN_TOOL
    assert result.content == f"Error: there is no tool named {name[:60]!r}. Tools: calculator, weather"


def test_a_rollout_without_tools_says_so(runner):
    [[result]] = runner.run([job("ghost")])
    assert result.content == "Error: there is no tool named 'ghost'. There are no tools"


class Callable:
    async def __call__(self, city: str) -> str:
        return await async_weather(city)

    def method(self, city: str) -> str:
        return weather(city)


@pytest.mark.parametrize(
    "tool",
    [
        functools.partial(weather, unit="C"),
        functools.partial(async_weather),
        Callable(),
        Callable().method,
        lambda **named: weather(**named),
        lambda city: async_weather(city),
    ],
)
def test_partials_objects_methods_and_keyword_functions_are_tools(runner, tool):
    assert run(runner, tool, {"city": "Oslo"}).content == "7 C in Oslo"


def test_a_builtin_without_a_signature_is_a_tool(runner):
    assert run(runner, dict, {"city": "Oslo"}).content == '{"city": "Oslo"}'
    assert run(runner, dict, [1]).status is CallStatus.BAD_ARGUMENTS


def test_tools_run_when_called_from_a_running_event_loop(runner):
    async def cell():
        return [run(runner, tool, {"city": "Oslo"}).content for tool in (weather, async_weather)]

    assert asyncio.run(cell()) == ["7 C in Oslo"] * 2
