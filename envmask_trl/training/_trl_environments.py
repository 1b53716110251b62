"""Environments that fail, in TRL's trainer. Beside `_trl.py`, the one file that knows private parts of TRL.

here       the environments of a generation batch are reset, all at the same time; what a reset raises is kept as that
           rollout's error: it is not played, and the others go on
TRL        calls their resets in order, is told what they said, and adds it to the prompts
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from trl.trainer import grpo_trainer

from ..rewards.functions import is_async
from ..rollout.content_guard import ContentGuard
from ..rollout.environment_runs import Opened, reset_environments
from ..rollout.environments import EnvironmentFailed, failures_told
from ..rollout.episodes import encode_prompt
from ..rollout.tools import ToolRunner
from ..trajectory import StopReason, Trajectory
from ._trl import HookedGRPOTrainer


class GuardedEnvironments(HookedGRPOTrainer):
    """The hooked trainer, for which an environment that fails is a rollout that ended, and not the end of the run."""

    opened: Mapping[int, Opened] = {}  # of the latest generation, by the id of the instance
    trajectories: list[Trajectory]
    tool_runner: ToolRunner
    guard: ContentGuard | None  # of what environments say; None without them

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        drawn = self.drawn_environments(inputs)
        opened = self.reset_all(drawn, inputs) if drawn else []
        self.opened = {id(each.environment): each for each in opened}
        with resets_answered(opened):
            return super()._generate_and_score_completions(inputs)

    def reset_all(self, environments: list[object], inputs: Sequence[Mapping[str, Any]]) -> list[Opened]:
        unread = {"environment"} if self._multi_environment else set()  # which TRL keeps from `reset`
        rows = [{name: value for name, value in row.items() if name not in unread} for row in inputs]
        try:
            return reset_environments(environments, rows, runner=self.tool_runner, guard=self.guard)
        except BaseException:
            vars(self)["environments"] = environments  # as if TRL had drawn them
            self.close_environments()
            raise

    def drawn_environments(self, inputs: Sequence[Mapping[str, Any]]) -> list[object]:
        """The instances that TRL will reset for these rows, those that its pool lacks made now."""
        drawn: list[object] = []
        used: Counter[Any] = Counter()
        factories: Any = self.environment_factories
        for row in inputs if factories is not None else ():
            name: Any = row.get("environment") if self._multi_environment else None
            if name not in factories:
                return []  # TRL says so
            pool: list[Any] = self._environment_pool[name]
            if used[name] == len(pool):
                pool.append(made(factories[name]))
            drawn.append(pool[used[name]])
            used[name] += 1
        return drawn

    @property
    def played_environments(self) -> list[object] | None:
        """The environments of this generation, as `run_rollouts` takes them."""
        return self.environments and [self.opened[id(env)] for env in self.environments]

    def tokenize_prompts(self, prompts: list) -> list[list[int]]:
        """As TRL does, but for control tokens in what a `reset` said."""
        if not self.environments:
            return super().tokenize_prompts(prompts)
        opened = [self.opened[id(env)] for env in self.environments]
        tools = [self._env_tools[name] for name in self._batch_environments]
        encode = partial(encode_prompt, tokenizer=self.processing_class, template_kwargs=self.chat_template_kwargs)
        return [
            list(encode(prompt, own, observation=each.observation or "", guard=self.guard))
            for prompt, own, each in zip(prompts, tools, opened, strict=True)
        ]

    def asked_only_if_it_works(self, functions: Sequence[Any]) -> list[Any]:
        """The reward functions; those that TRL made of `get_reward` give None where the environment failed."""
        return [guarded(f, self) if getattr(f, "__module__", "") == grpo_trainer.__name__ else f for f in functions]

    def close_environments(self) -> None:
        """Of one whose reset failed nobody knows the state: TRL must not reset it again."""
        for pool in self._environment_pool.values() if self.environment_factories is not None else ():
            failed = [each.environment for each in self.opened.values() if each.error]
            pool[:] = [instance for instance in pool if not any(instance is each for each in failed)]
        super().close_environments()


def made(factory: Callable[[], object]) -> object:
    try:
        with failures_told():
            return factory()
    except EnvironmentFailed as failure:
        raise ValueError(
            f"an environment could not be made, {failure}; do what may fail in reset, which then ends only its rollout"
        ) from failure


def guarded(function: Callable[..., Any], trainer: GuardedEnvironments) -> Callable[..., Any]:
    def working(environments: Sequence[object]) -> list[object | None]:
        pairs = zip(environments, trainer.trajectories, strict=True)
        return [None if trajectory.stop_reason is StopReason.ENV_ERROR else env for env, trajectory in pairs]

    @functools.wraps(function)
    def now(environments: Sequence[object], **columns: Any) -> Any:
        return function(environments=working(environments), **columns)

    @functools.wraps(function)
    async def later(environments: Sequence[object], **columns: Any) -> Any:
        return await function(environments=working(environments), **columns)

    return later if is_async(function) else now


@contextmanager
def resets_answered(opened: Sequence[Opened]) -> Iterator[None]:
    """Inside, the first reset of each instance returns what the one that was played said; later ones are plain.

    It is the class that is changed, because an instance may take no attributes.
    """
    waiting = {id(each.environment): each.observation for each in opened}

    def answered(kind: type) -> Callable[..., Any]:
        plain = inspect.getattr_static(kind, "reset")

        @functools.wraps(plain)
        def reset(env: object, /, *args: Any, **row: Any) -> Any:
            return waiting.pop(id(env)) if id(env) in waiting else plain.__get__(env, kind)(*args, **row)

        return reset

    with ExitStack() as stack:
        replaced = {kind: answered(kind) for kind in {type(each.environment) for each in opened}}
        for kind, reset in replaced.items():
            stack.enter_context(swapped_in_class(kind, reset))
        yield


@contextmanager
def swapped_in_class(kind: type, reset: Callable[..., Any]) -> Iterator[None]:
    """Inside, the class has this `reset`; afterwards its own one, or none where it was inherited."""
    own = "reset" in vars(kind)
    before = vars(kind).get("reset")
    kind.reset = reset  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if own:
            kind.reset = before  # type: ignore[attr-defined]
        else:
            del kind.reset  # type: ignore[attr-defined]
