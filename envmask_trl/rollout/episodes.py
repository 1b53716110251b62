"""The start and the end of rollouts: environments opened and closed, prompts rendered. Knows no sampler, no loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from .content_guard import ContentGuard
from .environment_runs import Opened, close_environments, reset_environments
from .environments import EnvironmentFailed, environment_tools, failures_told, merge_observation, tools_by_name
from .guarded_prompt import guarded_ids
from .message_text import with_texts
from .response_templates import render
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
    observation: str = ""  # of `reset`: a message of the prompt ends in it
    control_tokens: int = 0  # in the observation

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
    guard: ContentGuard | None,
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
    common = hide_contexts(tools)
    offered = [[*common, *hide_contexts(own or ())] for own in row_tools or [()] * len(prompts)]
    shown = [with_texts(prompt) for prompt in prompts]
    if not callable(environments):
        given = [env if isinstance(env, Opened) else Opened(env) for env in environments or [None] * len(prompts)]
        check_not_shared([each.environment for each in given if each.environment is not None])
        yield [_episode(*each) for each in zip(given, shown, offered, strict=True)]
        return
    made: dict[int, object] = {}
    try:
        failed = _make(environments, len(prompts), made)
        fields = [{"prompt": prompt, **row} for prompt, row in zip(prompts, rows or [{}] * len(prompts), strict=True)]
        reset = reset_environments(list(made.values()), [fields[index] for index in made], runner=runner, guard=guard)
        opened = failed | dict(zip(made, reset, strict=True))
        merged = [merge_observation(prompt, opened[index].observation) for index, prompt in enumerate(shown)]
        episodes = [_episode(opened[index], *each) for index, each in enumerate(zip(merged, offered, strict=True))]
        check_any_started(episodes)
        yield episodes
    finally:
        close_environments(list(made.values()), runner=runner)


def _make(factory: Callable[[], object], count: int, made: dict[int, object]) -> dict[int, Opened]:
    """Add an environment for each rollout to `made`, by its number; returns those that could not be made."""
    failed: dict[int, Opened] = {}
    for index in range(count):
        try:
            with failures_told():
                env = factory()
        except EnvironmentFailed as failure:
            failed[index] = Opened(None, error=str(failure))
        else:
            check_not_shared([*made.values(), env])
            made[index] = env
    return failed


def _episode(opened: Opened, prompt: Any, tools: list[Callable[..., Any]]) -> Episode:
    env = opened.environment
    own = environment_tools(env) if env is not None else []
    return Episode(prompt, [*tools, *own], env, opened.error, opened.observation or "", opened.control_tokens)


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


def encode_prompt(
    prompt: Any,
    tools: Sequence[Callable[..., Any]],
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: dict[str, Any],
    *,
    observation: str = "",
    guard: ContentGuard | None = None,
) -> tuple[int, ...]:
    """The ids of a prompt, the opening of the model's turn included; a text is encoded as it is.

    Args:
        observation: the end of one of the messages, whose control tokens `guard` keeps from becoming control ids.

    Raises:
        ValueError: tools with a prompt that is a text, a message whose content is no text, a template that raises, or
            a prompt without tokens.
    """
    prompt = with_texts(prompt)
    if isinstance(prompt, str):
        if tools:
            raise ValueError("tools need a prompt of messages, which the chat template can show them in; found a text")
        ids = tokenizer(prompt)["input_ids"]
    else:
        try:
            if observation and guard is not None:
                shown = partial(render, tools=list(tools), template_kwargs=template_kwargs, add_generation_prompt=True)
                return guarded_ids(prompt, observation, guard, partial(shown, tokenizer))
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
