"""TRL's `environment_factory` contract as functions. Knows environments and messages: no tokens, no order of calls.

class Maze:
    def reset(self, **row) -> str | list | None: ...    the observation that opens the episode
    def move(self, to: str) -> str: ...                 public methods are tools, sync or async
    def get_reward(self) -> float: ...                  optional
    def get_turn_rewards(self) -> list[float]: ...      optional, see `training/turn_scores.py`; more than TRL knows
    def state_key(self) -> str: ...                     optional: names the state, equal for equal states; the same
    done: bool                                          optional: the episode is over
    def close(self) -> None: ...                        optional, sync or async; more than TRL knows
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..trajectory import CallStatus, Message, ToolCall
from .tool_values import describe_error
from .tools import ToolJob, ToolRunner

NOT_TOOLS = frozenset({"reset", "get_reward", "get_turn_rewards", "state_key", "close"})
CLOSED = "_envmask_closed"  # set on an instance that was closed


class EnvironmentFailed(Exception):
    """What an environment raised, as one line; its rollout ends with ENV_ERROR and the others go on."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Stands for an environment whose reset failed, where instances are passed that were reset already.

    Example:
        NotStarted(maze, "ConnectionError: no container")
    """

    environment: object
    error: str


@contextmanager
def failures_told() -> Iterator[None]:
    """Inside, whatever an environment raises becomes an `EnvironmentFailed`; only the user's own Ctrl-C stays."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: it is the environment's, not the user's
        raise EnvironmentFailed(describe_error(error).removeprefix("Error: ")) from error


def environment_tools(env: object) -> list[Callable[..., Any]]:
    """The environment's public methods, by name; read from its class, so that no property is evaluated.

    Example: environment_tools(Maze()) is [<bound method Maze.move>]
    """
    names = [name for name, _ in inspect.getmembers(type(env), inspect.isfunction)]
    return [getattr(env, name) for name in names if name not in NOT_TOOLS and not name.startswith("_")]


def tool_names(tools: Iterable[Callable[..., Any]]) -> list[str]:
    """The names by which the model calls the tools; a tool that has none is a ValueError."""
    return [tool_name(index, tool) for index, tool in enumerate(tools)]


def tool_name(index: int, tool: Callable[..., Any]) -> str:
    name = getattr(tool, "__name__", None)
    if not isinstance(name, str) or name in ("", "<lambda>"):
        raise ValueError(
            f"tool {index} ({type(tool).__name__}) has no name that a model could call; set its __name__ or use a def"
        )
    return name


def tools_by_name(tools: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The tools of one rollout as `ToolJob` takes them; two tools of one name are a ValueError."""
    by_name: dict[str, Callable[..., Any]] = {}
    for index, tool in enumerate(tools):
        name = tool_name(index, tool)
        if name in by_name:
            raise ValueError(f"two tools are named {name!r}, but the model calls a tool by its name; rename one")
        by_name[name] = tool
    return by_name


def reset_environment(env: Any, row: Mapping[str, Any]) -> str | list | None:
    """Start an episode with the fields of a dataset row; what it returns belongs to the prompt.

    Raises:
        EnvironmentFailed: `reset` raised.
        ValueError: no row could be reset so: `reset` is not what the contract says, or does not take these fields.
    """
    kind = type(env).__name__
    if inspect.getattr_static(env, CLOSED, False):
        raise ValueError(f"{kind} was closed and cannot be reset; make a new instance for each rollout")
    reset = getattr(env, "reset", None)
    if not callable(reset) or inspect.iscoroutinefunction(reset):
        raise ValueError(f"{kind} must have a reset(**row) that is a method and not async")
    try:
        inspect.signature(reset).bind(**row)
    except TypeError as error:
        raise ValueError(
            f"{kind}.reset does not take the fields {', '.join(row)} of a row ({error}); add **row to it"
        ) from None
    with failures_told():
        observation = reset(**row)
    return checked_observation(env, observation)


def checked_observation(env: object, observation: Any) -> str | list | None:
    if observation is not None and not isinstance(observation, (str, list)):
        raise ValueError(
            f"{type(env).__name__}.reset returned {type(observation).__name__}, expected a str, a list of content "
            "blocks or None"
        )
    return observation


def merge_observation(prompt_messages: list[Message], observation: str | list | None) -> list[Message]:
    """The prompt with the observation at the end of its last user message; the input is left as it is.

    Example:
        merge_observation([{"role": "user", "content": "Play."}], " The board is empty.")
        [{"role": "user", "content": "Play. The board is empty."}]
    """
    if observation is None:
        return list(prompt_messages)
    if isinstance(prompt_messages, str):
        raise ValueError("the prompt is a text, to which the observation of reset cannot be added; use messages")
    last = max((i for i, message in enumerate(prompt_messages) if message["role"] == "user"), default=None)
    if last is None:
        raise ValueError("the prompt has no user message that the observation of reset could be added to")
    content: Any = prompt_messages[last].get("content") or type(observation)()
    if isinstance(observation, list) and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if isinstance(observation, str) and isinstance(content, list):
        observation = [{"type": "text", "text": observation}]
    merged = {**prompt_messages[last], "content": content + observation}
    return [*prompt_messages[:last], merged, *prompt_messages[last + 1 :]]


def is_done(env: object) -> bool:
    """Whether the attribute `done` says so; a method of that name is a tool, not the flag."""
    with failures_told():
        done = getattr(env, "done", False)
        return not callable(done) and bool(done)


def state_key(env: object) -> str | None:
    """What the optional `state_key()` says now, as text; None of an environment without one."""
    method = getattr(env, "state_key", None)
    with failures_told():
        return str(method()) if callable(method) else None


def close_environment(env: object, *, runner: ToolRunner | None = None) -> None:
    """Call the optional `close()`, at most once per instance; what it raises becomes a warning.

    An instance keeps in an attribute that it was closed; one that can hold none (bare `__slots__`) is closed again.

    Args:
        runner: the one that ran the tools: an async `close` finds its sessions on the event loop they belong to, and a
            hung one is given up at the runner's deadline.
    """
    close = getattr(env, "close", None)
    if not callable(close) or inspect.getattr_static(env, CLOSED, False):
        return
    with suppress(AttributeError):
        object.__setattr__(env, CLOSED, True)
    # Not the method itself: no call of an instance is run while an earlier one hangs, but closing may be what ends it.
    job = ToolJob(calls=(ToolCall("close", "close", {}),), tools={"close": partial(close)})
    with nullcontext(runner) if runner else closing(ToolRunner()) as used:
        [[result]] = used.run([job])
    if result.status is not CallStatus.OK:
        warnings.warn(f"{type(env).__name__}.close failed: {result.content}", RuntimeWarning, stacklevel=2)
