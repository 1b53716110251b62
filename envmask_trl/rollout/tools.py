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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from threading import Condition, Thread
from time import perf_counter

from ..trajectory import CallStatus, ToolResult
from .tool_flight import ToolFlight
from .tool_lanes import ToolJob, Work
from .tool_loop import LoopKeeper
from .tool_values import describe_error, read_all_async, to_content


class RolloutAborted(Exception):
    """Raise it from a tool or an environment when the infrastructure failed: the rollout ends with ENV_ERROR."""


class ToolRunner:
    """Runs the calls of a round at the same time and gives every call exactly one result.

    A sync tool runs outside the main thread, so what it uses must not be bound to the thread that made it.

    Args:
        timeout_s: seconds from a call's start to its deadline.
        retries: more tries, within the same deadline, for a call whose tool raised.
        max_concurrent: calls of one `run` or flight that are at work at the same time; a call that was given up no
            longer counts.
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
        self.changed = Condition()  # held to change what is at work, notified when a call has answered
        self._left_behind: list[Work] = []  # ordered calls whose threads may still change their environment

    def run(self, jobs: Sequence[ToolJob]) -> list[list[ToolResult]]:
        """One result per call: `result[i][j]` answers `jobs[i].calls[j]`.

        Whatever a tool raises becomes a result; only the user's own Ctrl-C propagates.
        """
        flight = ToolFlight(self)
        flight.add(dict(enumerate(jobs)))
        flight.wait(lambda working: not working)
        return list(flight.take().values())

    def close(self) -> None:
        """Stop the event loop, and with it what async tools left running. A closed runner may be used again."""
        self._loop.close()

    def start(self, work: Work, answer: Callable[[Work, ToolResult], None]) -> ToolResult | None:
        """Start a thread that will call `answer`, or return the result of a call that cannot be started."""
        work.start_s = perf_counter()
        if self._is_left_behind(work.owner):
            text = f"Error: {work.call.name} was not run, because an earlier call is still at work"
            return work.answer(CallStatus.TIMEOUT, text)
        work.thread = Thread(target=self._work, args=(work, answer), daemon=True, name=f"tool-{work.call.name}")
        try:
            work.thread.start()
        except RuntimeError as error:  # the machine has no thread left
            return work.answer(CallStatus.ABORTED, describe_error(error))
        return None

    def _work(self, work: Work, answer: Callable[[Work, ToolResult], None]) -> None:
        deadline_s = work.start_s + self.timeout_s
        for _ in range(self.retries + 1):
            status, content = self._attempt(work, deadline_s)
            if status is not CallStatus.ERROR or perf_counter() >= deadline_s:
                break
        answer(work, work.answer(status, content))

    def _attempt(self, work: Work, deadline_s: float) -> tuple[CallStatus, str]:
        try:
            value = work.tool(**deepcopy(work.call.arguments))  # the original is part of the rollout's messages
            if inspect.isasyncgen(value):
                value = read_all_async(value)
            while inspect.isawaitable(value):
                value = self._loop.wait(value, deadline_s)
            if isinstance(value, Future):
                value = value.result(max(deadline_s - perf_counter(), 0.0))
            return CallStatus.OK, to_content(value)
        except RolloutAborted as error:
            return CallStatus.ABORTED, describe_error(error)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they are the tool's, not the user's
            return CallStatus.ERROR, describe_error(error)

    def give_up(self, work: Work) -> ToolResult:
        """The result of a call whose deadline has passed; its thread is left behind."""
        if work.ordered:
            self._left_behind.append(work)
        self._loop.ping()
        text = f"Error: {work.call.name} gave no answer within {self.timeout_s:g} s"
        return work.answer(CallStatus.TIMEOUT, text)

    def _is_left_behind(self, owner: object) -> bool:
        self._left_behind = [work for work in self._left_behind if work.thread is not None and work.thread.is_alive()]
        return any(work.owner is owner for work in self._left_behind)
