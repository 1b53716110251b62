"""The start and the end of rollouts: environments opened and closed, prompts rendered. Knows no sampler, no loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from .environments import (
    EnvironmentFailed,
    NotStarted,
    close_environment,
    environment_tools,
    failures_told,
    merge_observation,
    reset_environment,
    tools_by_name,
)
from .tool_context import hide_contexts
from .tools import RolloutAborted, ToolRunner

ABORTED = RolloutAborted.__name__  # how the error of one begins
Environments = Sequence[object] | Callable[[], object] | None


@dataclass(frozen=True, slots=True)
class Episode:
    """What one rollout starts from.

    Example:
        Episode(prompt=[{"role": "user", "content": "Play."}], tools=[maze.move], environment=maze)
        Episode(prompt=[{"role": "user", "content": "Play."}], tools=[], error="ConnectionError: no container")
    """

    prompt: Any
    tools: list[Callable[..., Any]]
    environment: object | None = None
    error: str = ""  # why the environment could not be made or reset

    @property
    def ordered_tools(self) -> frozenset[str]:
        """The tools that share the environment's state."""
        return (
            frozenset(tools_by_name(environment_tools(self.environment)))
            if self.environment is not None
            else frozenset()
        )


@contextmanager
def open_episodes(
    prompts: Sequence[Any],
    *,
    tools: Sequence[Callable[..., Any]],
    row_tools: Sequence[Sequence[Callable[..., Any]]] | None,
    environments: Environments,
    rows: Sequence[Mapping[str, Any]] | None,
    runner: ToolRunner,
) -> Iterator[list[Episode]]:
    """One episode per prompt; environments that were made here are closed on every way out.

    An environment that cannot be made or reset is the `error` of its episode.

    Raises:
        ValueError: lists of unequal length, rollouts that would share an environment, or no environment could be
            started, and not because each of them raised `RolloutAborted`.
    """
    for name, values in (("row_tools", row_tools), ("rows", rows), ("environments", environments)):
        if values is not None and not callable(values) and len(values) != len(prompts):
            raise ValueError(
                f"{name} has {len(values)} entries but there are {len(prompts)} prompts; give one for each"
            )
    tools, own_tools = hide_contexts(tools), [hide_contexts(own or ()) for own in row_tools or [()] * len(prompts)]
    if not callable(environments):
        instances = environments or [None] * len(prompts)
        check_not_shared([env for env in instances if env is not None])
        yield [
            _given(env, prompt, [*tools, *own]) for prompt, own, env in zip(prompts, own_tools, instances, strict=True)
        ]
        return
    made: list[object] = []
    try:
        episodes = []
        for prompt, own, row in zip(prompts, own_tools, rows or [{}] * len(prompts), strict=True):
            episodes.append(_start(environments, made, prompt, [*tools, *own], row))
        check_any_started(episodes)
        yield episodes
    finally:
        for env in made:
            close_environment(env, runner=runner)


def all_tools(episodes: Sequence[Episode]) -> list[Callable[..., Any]]:
    """The tools of all episodes, one of each name: what reads and writes turns must know those of every rollout."""
    by_name: dict[str, Callable[..., Any]] = {}
    for episode in episodes:
        for name, tool in tools_by_name(episode.tools).items():
            by_name.setdefault(name, tool)
    return list(by_name.values())


def check_not_shared(environments: Sequence[object]) -> None:
    """One state for two rollouts would give each the moves of the other."""
    if len({id(env) for env in environments}) < len(environments):
        kind = type(environments[0]).__name__
        raise ValueError(f"two rollouts were given the same {kind}; make a new instance for each rollout")


def check_any_started(episodes: Sequence[Episode]) -> None:
    errors = [episode.error for episode in episodes if episode.error]
    if errors and len(errors) == len(episodes) and not all(error.startswith(ABORTED) for error in errors):
        raise ValueError(
            f"no environment could be started for any of {len(episodes)} rollouts; the first one raised {errors[0]}"
        )


def _given(env: Any, prompt: Any, tools: list[Callable[..., Any]]) -> Episode:
    """The episode of an environment that was reset already."""
    error = ""
    if isinstance(env, NotStarted):
        env, error = env.environment, env.error
    return Episode(prompt, [*tools, *(environment_tools(env) if env is not None else ())], env, error)


def _start(
    factory: Callable[[], object],
    made: list[object],
    prompt: Any,
    tools: list[Callable[..., Any]],
    row: Mapping[str, Any],
) -> Episode:
    """Make an environment, which is added to `made`, and reset it."""
    all_tools = tools
    try:
        with failures_told():
            env = factory()
        check_not_shared([*made, env])
        made.append(env)
        all_tools = [*tools, *environment_tools(env)]
        observation = reset_environment(env, {"prompt": prompt, **row})
    except EnvironmentFailed as failure:
        return Episode(prompt, all_tools, error=str(failure))
    return Episode(merge_observation(prompt, observation), all_tools, env)


def encode_prompt(
    prompt: Any,
    tools: Sequence[Callable[..., Any]],
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: dict[str, Any],
) -> tuple[int, ...]:
    """The ids of a prompt, the opening of the model's turn included; a text is encoded as it is.

    Raises:
        ValueError: tools with a prompt that is a text, a template that raises, or a prompt without tokens.
    """
    if isinstance(prompt, str):
        if tools:
            raise ValueError("tools need a prompt of messages, which the chat template can show them in; found a text")
        ids = tokenizer(prompt)["input_ids"]
    else:
        try:
            ids = tokenizer.apply_chat_template(
                prompt, tools=list(tools) or None, add_generation_prompt=True, return_dict=False, **template_kwargs
            )
        except Exception as error:  # a template, and the tools' own docstrings, may raise anything
            raise ValueError(
                f"the chat template cannot show the prompt {str(prompt)[:80]!r} and its tools: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not ids:
        raise ValueError(f"the prompt {prompt!r} has no tokens")
    return tuple(ids)
