"""Environments reset and closed, all at the same time. Knows the tool runner and its deadline: no tokens, no rollouts.

resets    [maze, shop, room (hangs)], each in a thread  ->  "You are at a1.", None, "TimeoutError: reset gave no .."
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..trajectory import CallStatus, ToolCall, ToolResult
from .content_guard import WITHHELD, ContentGuard
from .environments import CLOSED, checked_observation, error_line
from .tools import ToolJob, ToolRunner

OTHER_THREAD = "resets run outside of the main thread, as tools do"


@dataclass(frozen=True, slots=True)
class Opened:
    """An environment that was reset.

    Example:
        Opened(maze, observation="You are at a1.")
        Opened(maze, error="ConnectionError: no container")
    """

    environment: object
    observation: str | None = None  # belongs to the prompt
    error: str = ""  # why the reset failed
    control_tokens: int = 0  # found in the observation; none of them becomes a control id


def reset_environments(
    environments: Sequence[object],
    rows: Sequence[Mapping[str, Any]],
    *,
    runner: ToolRunner | None = None,
    guard: ContentGuard | None = None,
) -> list[Opened]:
    """Start an episode of each environment with the fields of its dataset row; one that fails has an `error`.

    A `reset` that is not back at the runner's deadline has failed; its thread is left behind.

    Args:
        guard: for control tokens in what they say.

    Raises:
        ValueError: no row could be reset so: a `reset` is not what the contract says, or does not take these fields.
    """
    pairs = list(zip(environments, rows, strict=True))
    resets = [partial(checked_reset(env, row), **row) for env, row in pairs]
    outcomes: list[list[Opened]] = [[] for _ in pairs]
    calls = [partial(copy_context().run, keep, *each) for each in zip(environments, resets, outcomes, strict=True)]
    results = run_each("reset", calls, runner)
    return [
        checked(outcome[0], guard) if result.status is CallStatus.OK else Opened(env, error=not_back(result))
        for env, outcome, result in zip(environments, outcomes, results, strict=True)
    ]


def checked(opened: Opened, guard: ContentGuard | None) -> Opened:
    """With the observation as text, which `guard` has seen."""
    observation = checked_observation(opened.environment, opened.observation)
    if observation is None or guard is None:
        return replace(opened, observation=observation)
    said = guard.apply(observation)
    said = f"\n{said}" if said == WITHHELD else said  # it stands behind the user's text
    return replace(opened, observation=said, control_tokens=len(guard.find(observation)))


def checked_reset(env: Any, row: Mapping[str, Any]) -> Callable[..., Any]:
    kind = type(env).__name__
    if inspect.getattr_static(env, CLOSED, False):
        raise ValueError(f"{kind} was closed and cannot be reset; make a new instance for each rollout")
    reset = getattr(env, "reset", None)
    if not callable(reset) or inspect.iscoroutinefunction(reset):
        raise ValueError(f"{kind} must have a reset(**row) that is a method and not async")
    try:
        inspect.signature(reset, follow_wrapped=False).bind(**row)
    except ValueError:  # it does not say what it takes
        return reset
    except TypeError as error:
        raise ValueError(
            f"{kind}.reset does not take the fields {', '.join(row)} of a row ({error}); add **row to it"
        ) from None
    return reset


def keep(env: object, reset: Callable[[], Any], outcome: list[Opened]) -> None:
    """What a thread does: it raises nothing, because a reset is not tried again."""
    try:
        outcome.append(Opened(env, reset()))
    except BaseException as error:  # KeyboardInterrupt too: the user's own is raised in the main thread
        line = error_line(error)
        outcome.append(Opened(env, error=f"{line} ({OTHER_THREAD})" if "thread" in line else line))


def not_back(result: ToolResult) -> str:
    said = result.content.removeprefix("Error: ")
    return f"TimeoutError: {said}" if result.status is CallStatus.TIMEOUT else said


def close_environments(environments: Sequence[object], *, runner: ToolRunner | None = None) -> None:
    """Call the optional `close()` of each, at most once per instance; what it raises becomes a warning.

    An instance keeps in an attribute that it was closed; one that can hold none (bare `__slots__`) is closed again.

    Args:
        runner: the one that ran the tools: an async `close` finds its sessions on the event loop they belong to, and a
            hung one is given up at the runner's deadline.
    """
    ending = []
    for env in environments:
        if callable(getattr(env, "close", None)) and not inspect.getattr_static(env, CLOSED, False):
            with suppress(AttributeError):
                object.__setattr__(env, CLOSED, True)
            ending.append(env)
    # Not the methods: no call of an instance is run while an earlier one hangs, but closing may be what ends it.
    closes = [partial(env.close) for env in ending]  # type: ignore[attr-defined]
    for env, result in zip(ending, run_each("close", closes, runner), strict=True):
        if result.status is not CallStatus.OK:
            warnings.warn(f"{type(env).__name__}.close failed: {result.content}", RuntimeWarning, stacklevel=2)


def run_each(name: str, calls: Sequence[Callable[[], Any]], runner: ToolRunner | None) -> list[ToolResult]:
    """The result of each call, all at work at the same time."""
    jobs = [ToolJob(calls=(ToolCall(name, name, {}),), tools={name: call}) for call in calls]
    with nullcontext(runner) if runner else closing(ToolRunner()) as used:
        return [result for (result,) in used.run(jobs)]
