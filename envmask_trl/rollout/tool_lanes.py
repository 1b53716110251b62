"""Which calls may run at the same time, and which one after another. Runs nothing.

calls    [weather, calculator]    [move, look] (ordered)    [ghost]
lanes    weather | calculator     move -> look              none: there is no tool of that name
"""

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Thread
from time import perf_counter
from typing import Any

from ..trajectory import CallStatus, ToolCall, ToolResult
from .batched_tools import RoundBatch, batched_owner
from .tool_values import find_refusal

Lane = deque["Work"]  # calls that run one after another


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

    @property
    def is_batched(self) -> bool:
        """Whether a call of it is answered together with those of other rollouts."""
        return any(batched_owner(self.tools.get(call.name)) is not None for call in self.calls)


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


def plan_lanes(jobs: Mapping[int, ToolJob], results: dict[tuple[int, int], ToolResult]) -> deque[Lane]:
    """The legal calls in the lanes they run in; what must not be run goes into `results` at once.

    The calls of all these jobs to one batched tool are one batch.
    """
    lanes: deque[Lane] = deque()
    batches: dict[int, RoundBatch] = {}
    for row, job in jobs.items():
        ordered: Lane = deque()
        for column, call in enumerate(job.calls):
            if (refusal := find_refusal(call, job.tools)) is not None:
                results[row, column] = unrun(call, *refusal)
                continue
            tool = job.tools[call.name]
            if (owner := batched_owner(tool)) is not None:
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
