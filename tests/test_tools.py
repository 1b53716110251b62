"""The tool runner: every call of every rollout gets exactly one result, and nothing that was not legal is run."""

import asyncio
import functools
import json
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass

import pytest

from envmask_trl.rollout.tool_values import to_content
from envmask_trl.rollout.tools import RolloutAborted, ToolJob, ToolRunner
from envmask_trl.trajectory import CallStatus, ToolCall, ToolResult

FOREVER_S = 1e6


@pytest.fixture
def runner():
    runner = ToolRunner(timeout_s=20)
    yield runner
    runner.close()


@pytest.fixture
def hasty():
    runner = ToolRunner(timeout_s=0.5)
    yield runner
    runner.close()


def run(runner: ToolRunner, tool, arguments=None, name="tool") -> ToolResult:
    [[result]] = runner.run(
        [ToolJob((ToolCall("call00000", name, {} if arguments is None else arguments),), {name: tool})]
    )
    return result


def job(*names, ordered=(), **tools) -> ToolJob:
    calls = tuple(ToolCall(f"call{index:05}", name, {}) for index, name in enumerate(names))
    return ToolJob(calls, tools, frozenset(ordered))


def run_program(text: str) -> subprocess.CompletedProcess:
    imports = """
        import asyncio, os, signal, threading, time
        from envmask_trl.rollout.tools import ToolJob, ToolRunner
        from envmask_trl.trajectory import ToolCall
    """
    program = textwrap.dedent(imports) + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=10)


def weather(city: str, unit: str = "C") -> str:
    return f"7 {unit} in {city}"


async def async_weather(city: str) -> str:
    await asyncio.sleep(0)
    return f"7 C in {city}"


def slow():
    time.sleep(0.2)
    return "slow"


async def async_slow():
    await asyncio.sleep(0.2)
    return "slow"


def hang():
    time.sleep(FOREVER_S)


async def async_hang():
    await asyncio.sleep(FOREVER_S)


async def block_the_loop():
    time.sleep(FOREVER_S)


# Calls of different rollouts overlap


@pytest.mark.parametrize("tool", [slow, async_slow])
def test_sixty_four_rollouts_wait_for_one_slow_tool_and_not_for_sixty_four(runner, tool):
    start = time.perf_counter()
    results = runner.run([job("tool", tool=tool)] * 64)
    assert time.perf_counter() - start < 3  # one after another: 12.8 s
    assert [[result.content for result in row] for row in results] == [["slow"]] * 64
    assert all(0.15 < row[0].latency_s < 3 for row in results)


def test_results_come_in_call_order_with_their_ids_when_a_later_call_is_faster(runner):
    [results] = runner.run([job("a", "b", "a", a=async_slow, b=lambda: "fast")])
    assert [(result.call_id, result.name, result.content) for result in results] == [
        ("call00000", "a", "slow"),
        ("call00001", "b", "fast"),
        ("call00002", "a", "slow"),
    ]


def test_no_more_than_max_concurrent_calls_are_at_work():
    lock, at_work, most = threading.Lock(), 0, 0

    def tool():
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.02)
        with lock:
            at_work -= 1

    results = ToolRunner(max_concurrent=3).run([job("tool", "tool", tool=tool)] * 6)
    assert most == 3
    assert [[result.status for result in row] for row in results] == [[CallStatus.OK] * 2] * 6


def test_stateful_calls_of_one_rollout_keep_their_order_while_rollouts_overlap(runner):
    class Counter:
        def __init__(self):
            self.log = []

        def slow_step(self):
            time.sleep(0.1)
            self.log.append("slow")
            return list(self.log)

        async def fast_step(self):
            self.log.append("fast")
            return list(self.log)

    def play():
        counter = Counter()
        tools = {"slow_step": counter.slow_step, "fast_step": counter.fast_step}
        return job("slow_step", "fast_step", "slow_step", ordered=tools, **tools)

    start = time.perf_counter()
    results = runner.run([play() for _ in range(16)])
    assert time.perf_counter() - start < 2.5  # one rollout after another: 3.2 s
    for row in results:
        assert [result.content for result in row] == ['["slow"]', '["slow", "fast"]', '["slow", "fast", "slow"]']


def test_a_round_without_calls_has_no_results(runner):
    assert runner.run([]) == []
    assert runner.run([job(), job()]) == [[], []]


# Deadlines


@pytest.mark.parametrize("tool", [hang, async_hang, block_the_loop])
def test_one_hung_tool_of_eight_costs_the_others_no_more_than_the_deadline(hasty, tool):
    jobs = [job("quick", quick=lambda: "done") for _ in range(8)]
    jobs[3] = job("weather", weather=tool)
    start = time.perf_counter()
    results = [row[0] for row in hasty.run(jobs)]
    assert time.perf_counter() - start < 4
    assert results.pop(3).content == "Error: weather gave no answer within 0.5 s"
    assert [result.content for result in results] == ["done"] * 7


def test_a_hung_call_is_a_timeout_with_its_latency(hasty):
    result = run(hasty, hang)
    assert result.status is CallStatus.TIMEOUT
    assert 0.5 <= result.latency_s < 4


def test_an_answer_that_came_after_the_deadline_is_a_timeout_and_not_the_error_of_its_cancellation():
    runner = ToolRunner(timeout_s=0.02, max_concurrent=2000)  # starting the others takes longer than the deadline
    results = runner.run([job("tool", tool=async_hang)] + [job("quick", quick=int)] * 1000)
    assert results[0][0].status is CallStatus.TIMEOUT
    runner.close()


def test_an_abandoned_call_gives_its_place_to_the_next():
    runner = ToolRunner(timeout_s=0.3, max_concurrent=1)
    results = runner.run([job("tool", tool=hang), job("tool", tool=hang), job("tool", tool=lambda: "done")])
    assert [row[0].status for row in results] == [CallStatus.TIMEOUT, CallStatus.TIMEOUT, CallStatus.OK]


def test_a_deadline_starts_when_its_call_starts_and_not_when_it_is_queued():
    results = ToolRunner(timeout_s=1.5, max_concurrent=1).run([job("tool", tool=slow)] * 10)  # 2 s in all
    assert [row[0].status for row in results] == [CallStatus.OK] * 10


def test_calls_behind_a_hung_one_of_the_same_environment_are_not_run(hasty):
    class Board:
        looks = 0

        def move(self):
            time.sleep(FOREVER_S)

        def look(self):
            self.looks += 1

    board = Board()
    tools = {"move": board.move, "look": board.look}
    [results] = hasty.run([job("move", "look", "look", ordered=tools, **tools)])
    [[later]] = hasty.run([job("look", ordered=tools, **tools)])
    assert [result.status for result in [*results, later]] == [CallStatus.TIMEOUT] * 4
    assert results[1].content == "Error: look was not run, because move before it did not end"
    assert later.content == "Error: look was not run, because an earlier call is still at work"
    assert board.looks == 0
    other = Board()  # another rollout's environment is not concerned
    assert run(hasty, other.look).status is CallStatus.OK


def test_a_blocked_event_loop_is_replaced_in_the_next_round(hasty):
    assert run(hasty, block_the_loop).status is CallStatus.TIMEOUT
    assert run(hasty, async_weather, {"city": "Oslo"}).content == "7 C in Oslo"


def test_a_call_that_was_given_up_is_not_run_late_when_the_loop_is_free_again(hasty):
    blocked, late = threading.Event(), []

    async def block_a_while():
        blocked.set()
        time.sleep(1.2)

    async def write():
        late.append("written")

    def write_behind():
        blocked.wait()
        return write()

    results = hasty.run([job("tool", tool=block_a_while), job("tool", tool=write_behind)])
    assert [row[0].status for row in results] == [CallStatus.TIMEOUT] * 2
    time.sleep(1.5)
    assert late == []


def test_async_calls_of_all_rounds_share_one_event_loop_until_it_is_closed(runner):
    async def loop_id():
        return id(asyncio.get_running_loop())

    first = run(runner, loop_id).content
    assert run(runner, async_slow).content == "slow"
    assert run(runner, loop_id).content == first


@pytest.mark.parametrize(
    "tool",
    [
        "def tool(): time.sleep(1e6)",
        "def tool(): asyncio.run(asyncio.sleep(1e6))",
        "async def tool(): time.sleep(1e6)",
        "async def tool(): await asyncio.to_thread(time.sleep, 1e6)",
    ],
)
def test_the_interpreter_exits_while_a_tool_sleeps_forever(tool):
    done = run_program(f"""
        {tool}
        print(ToolRunner(timeout_s=0.3).run([ToolJob((ToolCall("0", "tool", {{}}),), {{"tool": tool}})])[0][0].status)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timeout\n", "")


# What a tool raises


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


# Nothing is run that was not legal


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


# Any callable is a tool


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


# What a tool returns


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
