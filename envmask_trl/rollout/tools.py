"""Runs tool calls. Knows callables, threads and deadlines: no tokens, no templates.

    calls     [weather (slow), calculator]    [move, look] (ordered)          [ghost]
    threads    weather ............ answer
               calculator . answer             move .. answer, look . answer   never run
    results   [weather, calculator]           [move, look]                    [there is no tool named 'ghost']

Every call has a daemon thread of its own: a thread pool's would be waited for when the interpreter exits. What an async
tool returns is awaited on one event loop that stays from round to round, so that its calls can share a session. A call
is given up at its deadline, its thread is left behind; only code that never releases the GIL can hold up the others.
"""

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any

from ..trajectory import CallStatus, ToolCall, ToolResult
from .batched_tools import BatchedTool, RoundBatch
from .tool_loop import LoopKeeper
from .tool_values import describe_error, find_refusal, to_content

Lane = deque["Work"]  # calls that run one after another
Answers = SimpleQueue[tuple["Work", ToolResult]]


class RolloutAborted(Exception):
    """Raise it from a tool or an environment when the infrastructure failed: the rollout ends with ENV_ERROR."""


@dataclass(frozen=True, slots=True)
class ToolJob:
    """All calls of one rollout in one round.

    Example:
        ToolJob(calls=(ToolCall("call00000", "move", {"to": "b4"}), ToolCall("call00001", "look", {})),
                tools={"move": board.move, "look": board.look}, ordered=frozenset({"move", "look"}))
    """

    calls: tuple[ToolCall, ...]
    tools: Mapping[str, Callable[..., Any]]  # the tools of this rollout by name
    ordered: frozenset[str] = frozenset()  # names whose calls share state: run one after another, in call order


@dataclass(eq=False, slots=True)
class Work:
    """One legal call: where its result belongs, and since when it is at work."""

    place: tuple[int, int]  # (job, call)
    call: ToolCall
    tool: Callable[..., Any]
    ordered: bool
    start_s: float = 0.0
    thread: Thread | None = None

    @property
    def owner(self) -> object:
        """Whose state the call uses."""
        return self.tool.__self__ if inspect.ismethod(self.tool) else self.tool

    def answer(self, status: CallStatus, content: str) -> ToolResult:
        return ToolResult(self.call.id, self.call.name, content, status, perf_counter() - self.start_s)


class ToolRunner:
    """Runs the calls of a round at the same time and gives every call exactly one result.

    A sync tool runs outside the main thread, so what it uses must not be bound to the thread that made it.

    Args:
        timeout_s: seconds from a call's start to its deadline.
        retries: more tries, within the same deadline, for a call whose tool raised.
        max_concurrent: calls of one `run` that are at work at the same time; a call that was given up no longer counts.
    """

    def __init__(self, *, timeout_s: float = 30.0, retries: int = 0, max_concurrent: int = 256):
        if not timeout_s > 0 or retries < 0 or max_concurrent < 1:
            raise ValueError(
                f"ToolRunner has timeout_s={timeout_s}, retries={retries}, max_concurrent={max_concurrent}; "
                "expected timeout_s > 0, retries >= 0 and max_concurrent >= 1"
            )
        self.timeout_s = timeout_s
        self.retries = retries
        self.max_concurrent = max_concurrent
        self._loop = LoopKeeper(grace_s=min(1.0, timeout_s / 4))
        self._left_behind: list[Work] = []  # ordered calls whose threads may still change their environment

    def run(self, jobs: Sequence[ToolJob]) -> list[list[ToolResult]]:
        """One result per call: `result[i][j]` answers `jobs[i].calls[j]`.

        Whatever a tool raises becomes a result; only the user's own Ctrl-C propagates.
        """
        results: dict[tuple[int, int], ToolResult] = {}
        lanes = plan_lanes(jobs, results)
        running: dict[Work, Lane] = {}  # in order of start, so that the first has the earliest deadline
        answers: Answers = SimpleQueue()
        while lanes or running:
            while lanes and len(running) < self.max_concurrent:
                lane = lanes.popleft()
                work = lane.popleft()
                running[work] = lane
                self._start(work, answers)
            work, result = self._next_answer(running, answers)
            results[work.place] = result
            lane = running.pop(work)
            if result.status in (CallStatus.TIMEOUT, CallStatus.ABORTED):  # the state behind it is unknown
                for skipped in lane:
                    text = f"Error: {skipped.call.name} was not run, because {work.call.name} before it did not end"
                    results[skipped.place] = unrun(skipped.call, result.status, text)
            elif lane:
                lanes.appendleft(lane)
        return [[results[row, column] for column, _ in enumerate(job.calls)] for row, job in enumerate(jobs)]

    def close(self) -> None:
        """Stop the event loop, and with it what async tools left running. A closed runner may be used again."""
        self._loop.close()

    def _start(self, work: Work, answers: Answers) -> None:
        work.start_s = perf_counter()
        if self._is_left_behind(work.owner):
            text = f"Error: {work.call.name} was not run, because an earlier call is still at work"
            answers.put((work, work.answer(CallStatus.TIMEOUT, text)))
            return
        work.thread = Thread(target=self._work, args=(work, answers), daemon=True, name=f"tool-{work.call.name}")
        try:
            work.thread.start()
        except RuntimeError as error:  # the machine has no thread left
            answers.put((work, work.answer(CallStatus.ABORTED, describe_error(error))))

    def _work(self, work: Work, answers: Answers) -> None:
        deadline_s = work.start_s + self.timeout_s
        for _ in range(self.retries + 1):
            status, content = self._attempt(work, deadline_s)
            if status is not CallStatus.ERROR or perf_counter() >= deadline_s:
                break
        answers.put((work, work.answer(status, content)))

    def _attempt(self, work: Work, deadline_s: float) -> tuple[CallStatus, str]:
        try:
            value = work.tool(**deepcopy(work.call.arguments))  # the original is part of the rollout's messages
            if inspect.isawaitable(value):
                value = self._loop.wait(value, deadline_s)
            return CallStatus.OK, to_content(value)
        except RolloutAborted as error:
            return CallStatus.ABORTED, describe_error(error)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they are the tool's, not the user's
            return CallStatus.ERROR, describe_error(error)

    def _next_answer(self, running: dict[Work, Lane], answers: Answers) -> tuple[Work, ToolResult]:
        """The next call that answered, or the oldest one when its deadline has passed."""
        oldest = next(iter(running))
        while True:
            left_s = oldest.start_s + self.timeout_s - perf_counter()
            try:
                work, result = answers.get(timeout=min(max(left_s, 0.0), 1.0))
            except Empty:
                if left_s <= 0:
                    return oldest, self._give_up(oldest)
                continue
            if work in running:
                return work, result if result.latency_s < self.timeout_s else self._give_up(work)

    def _give_up(self, work: Work) -> ToolResult:
        if work.ordered:
            self._left_behind.append(work)
        self._loop.ping()
        text = f"Error: {work.call.name} gave no answer within {self.timeout_s:g} s"
        return work.answer(CallStatus.TIMEOUT, text)

    def _is_left_behind(self, owner: object) -> bool:
        self._left_behind = [work for work in self._left_behind if work.thread is not None and work.thread.is_alive()]
        return any(work.owner is owner for work in self._left_behind)


def plan_lanes(jobs: Sequence[ToolJob], results: dict[tuple[int, int], ToolResult]) -> deque[Lane]:
    """The legal calls in the lanes they run in; what must not be run goes into `results` at once."""
    lanes: deque[Lane] = deque()
    batches: dict[int, RoundBatch] = {}
    for row, job in enumerate(jobs):
        ordered: Lane = deque()
        for column, call in enumerate(job.calls):
            if (refusal := find_refusal(call, job.tools)) is not None:
                results[row, column] = unrun(call, *refusal)
                continue
            tool = job.tools[call.name]
            if inspect.ismethod(tool) and isinstance(owner := tool.__self__, BatchedTool):
                tool = batches.setdefault(id(owner), RoundBatch(owner)).join(call.arguments)
            work = Work((row, column), call, tool, ordered=call.name in job.ordered)
            if work.ordered:
                ordered.append(work)
            else:
                lanes.append(deque([work]))
        if ordered:
            lanes.append(ordered)
    return lanes


def unrun(call: ToolCall, status: CallStatus, text: str) -> ToolResult:
    return ToolResult(call.id, call.name, text, status, latency_s=0.0)
