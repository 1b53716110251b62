"""Calls overlap, and one that hangs costs the others no more than its deadline."""

import asyncio
import threading
import time

import pytest

from envmask_trl.rollout.tools import ToolRunner
from envmask_trl.trajectory import CallStatus

from .running_tools import (
    FOREVER_S,
    async_hang,
    async_slow,
    async_weather,
    block_the_loop,
    hang,
    job,
    run,
    run_program,
    slow,
)


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
