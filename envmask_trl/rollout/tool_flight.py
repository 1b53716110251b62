"""Tool calls at work while their caller does something else. Knows lanes and deadlines: no tokens, no threads' work.

add({0: job})  ->  lanes  ->  running, each call in its own thread  ->  take() == {0: [result, ...]}
"""

from collections import deque
from collections.abc import Callable, Mapping, Set
from math import inf
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

from ..trajectory import CallStatus, ToolResult
from .tool_lanes import Lane, ToolJob, Work, plan_lanes, unrun

if TYPE_CHECKING:
    from .tools import ToolRunner

LONGEST_SLEEP_S = 1.0


class ToolFlight:
    """The jobs of several rollouts, to which more can be added while some are at work.

    The thread of a call that ends starts the next one, so nobody has to watch; a deadline that has passed is noticed
    when anything ends, is added or is waited for.

    Example:
        flight = ToolFlight(runner)
        flight.add({0: job})
        flight.wait(lambda working: not working)
        flight.take()  # {0: [ToolResult(...)]}
    """

    def __init__(self, runner: "ToolRunner"):
        self._runner = runner
        self._changed = runner.changed
        self._answers: SimpleQueue[tuple[Work, ToolResult]] = SimpleQueue()
        self._jobs: dict[int, ToolJob] = {}  # not yet taken
        self._left: dict[int, int] = {}  # calls without a result, of each job that has such
        self._results: dict[tuple[int, int], ToolResult] = {}
        self._lanes: deque[Lane] = deque()
        self._running: dict[Work, Lane] = {}  # in order of start, so that the first has the earliest deadline

    def add(self, jobs: Mapping[int, ToolJob]) -> None:
        """Set jobs to work, each under a name of its own; those that are added together share their batches."""
        with self._changed:
            self._jobs.update(jobs)
            lanes = plan_lanes(jobs, self._results)
            for work in (work for lane in lanes for work in lane):
                self._left[work.place[0]] = self._left.get(work.place[0], 0) + 1
            self._lanes += lanes
            self._advance()

    def wait(self, enough: Callable[[Set[int]], bool], *, until_s: float = inf) -> None:
        """Return when `enough` says so of the names still at work, when there are none, or at `until_s`.

        Args:
            enough: is asked again whenever a call has ended.
            until_s: on the clock of `perf_counter`.
        """
        with self._changed:
            self._advance()
            while self._left and not enough(self._left.keys()) and (left_s := until_s - perf_counter()) > 0:
                self._changed.wait(min(left_s, self._deadline_in_s(), LONGEST_SLEEP_S))
                self._advance()

    def take(self) -> dict[int, list[ToolResult]]:
        """The results of the jobs that have ended since, one per call, in call order."""
        with self._changed:
            ended = [name for name in self._jobs if name not in self._left]
            return {
                name: [self._results.pop((name, column)) for column, _ in enumerate(self._jobs.pop(name).calls)]
                for name in ended
            }

    def drain(self) -> None:
        """Start nothing more, and return when nothing is at work: for a caller that failed and takes no results."""
        with self._changed:
            self._lanes.clear()
            for lane in self._running.values():
                lane.clear()
            while self._running:
                self._changed.wait(min(self._deadline_in_s(), LONGEST_SLEEP_S))
                self._advance()

    def _answer(self, work: Work, result: ToolResult) -> None:
        """What the thread of a call does at its end."""
        self._answers.put((work, result))
        with self._changed:
            self._advance()
            self._changed.notify_all()

    def _advance(self) -> None:
        """Take in answers, give up what is overdue, and start what there is room for."""
        while not self._answers.empty():
            work, result = self._answers.get()
            if work in self._running:
                in_time = result.latency_s < self._runner.timeout_s
                self._end(work, result if in_time else self._runner.give_up(work))
        while self._running and self._deadline_in_s() <= 0:
            work = next(iter(self._running))
            self._end(work, self._runner.give_up(work))
        while self._lanes and len(self._running) < self._runner.max_concurrent:
            lane = self._lanes.popleft()
            work = lane.popleft()
            self._running[work] = lane
            if (refused := self._runner.start(work, self._answer)) is not None:
                self._end(work, refused)

    def _deadline_in_s(self) -> float:
        """Seconds until the next call has to be given up."""
        oldest = next(iter(self._running), None)
        return inf if oldest is None else max(oldest.start_s + self._runner.timeout_s - perf_counter(), 0.0)

    def _end(self, work: Work, result: ToolResult) -> None:
        lane = self._running.pop(work)
        self._record(work, result)
        if result.status in (CallStatus.TIMEOUT, CallStatus.ABORTED):  # the state behind it is unknown
            for skipped in lane:
                text = f"Error: {skipped.call.name} was not run, because {work.call.name} before it did not end"
                self._record(skipped, unrun(skipped.call, result.status, text))
        elif lane:
            self._lanes.appendleft(lane)

    def _record(self, work: Work, result: ToolResult) -> None:
        self._results[work.place] = result
        self._left[work.place[0]] -= 1
        if not self._left[work.place[0]]:
            del self._left[work.place[0]]
