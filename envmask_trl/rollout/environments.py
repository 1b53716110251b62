"""TRL's `environment_factory` contract as functions. Knows environments and messages: no tokens, no order of calls.

class Maze:
    def reset(self, **row) -> str | list | None: ...    what opens the episode, see `environment_runs.py`
    def move(self, to: str) -> str: ...                 public methods are tools, sync or async
    def get_reward(self) -> float: ...                  optional
    def get_turn_rewards(self) -> list[float]: ...      optional, see `training/turn_scores.py`; more than TRL knows
    def state_key(self) -> str: ...                     optional: names the state, equal for equal states; the same
    done: bool                                          optional: the episode is over
    def close(self) -> None: ...                        optional, sync or async; more than TRL knows
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..trajectory import Message
from .message_text import joined_text, with_text
from .tool_values import describe_error

NOT_TOOLS = frozenset({"reset", "get_reward", "get_turn_rewards", "state_key", "close"})
CLOSED = "_envmask_closed"  # set on an instance that was closed


class EnvironmentFailed(Exception):
    """What an environment raised, as one line; its rollout ends with ENV_ERROR and the others go on."""


@contextmanager
def failures_told() -> Iterator[None]:
    """Inside, whatever an environment raises becomes an `EnvironmentFailed`; only the user's own Ctrl-C stays."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: it is the environment's, not the user's
        raise EnvironmentFailed(error_line(error)) from error


def error_line(error: BaseException) -> str:
    """What was raised, as the `error` of a rollout: "ConnectionError: no container"."""
    return describe_error(error).removeprefix("Error: ")


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


def checked_observation(env: object, observation: Any) -> str | None:
    """What a `reset` returned, as text."""
    if observation is None:
        return None
    if not isinstance(observation, (str, list)):
        raise ValueError(
            f"{type(env).__name__}.reset returned {type(observation).__name__}, expected a str, a list of content "
            "blocks or None"
        )
    return joined_text(f"what {type(env).__name__}.reset returned", observation)


def merge_observation(prompt_messages: list[Message], observation: str | None) -> list[Message]:
    """The prompt with the observation at the end of its last user message; the input is left as it is.

    Example:
        merge_observation([{"role": "user", "content": "Play."}], " The board is empty.")
        [{"role": "user", "content": "Play. The board is empty."}]
    """
    if observation is None:
        return prompt_messages
    if isinstance(prompt_messages, str):
        raise ValueError("the prompt is a text, to which the observation of reset cannot be added; use messages")
    last = max((i for i, message in enumerate(prompt_messages) if message["role"] == "user"), default=None)
    if last is None:
        raise ValueError("the prompt has no user message that the observation of reset could be added to")
    asked = with_text(prompt_messages[last])
    merged = {**asked, "content": (asked.get("content") or "") + observation}
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
