"""Environments that fail, in TRL's trainer. Beside `_trl.py`, the one file that knows private parts of TRL.

TRL        resets all environments of a generation batch, in order, and adds what they say to the prompts
here       what a reset raises is kept as that rollout's error: it is not played, and the others go on
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from trl.trainer import grpo_trainer

from ..rewards.functions import is_async
from ..rollout.environments import EnvironmentFailed, NotStarted, checked_observation, failures_told
from ..trajectory import StopReason, Trajectory
from ._trl import HookedGRPOTrainer


class GuardedEnvironments(HookedGRPOTrainer):
    """The hooked trainer, for which an environment that fails is a rollout that ended, and not the end of the run."""

    reset_errors: Mapping[int, str] = {}  # of the latest generation, by the id of the instance
    trajectories: list[Trajectory]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with resets_caught(self.drawn_environments(inputs)) as self.reset_errors:
            return super()._generate_and_score_completions(inputs)

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
        errors = self.reset_errors
        return self.environments and [
            NotStarted(env, errors[id(env)]) if id(env) in errors else env for env in self.environments
        ]

    def asked_only_if_it_works(self, functions: Sequence[Any]) -> list[Any]:
        """The reward functions; those that TRL made of `get_reward` give None where the environment failed."""
        return [guarded(f, self) if getattr(f, "__module__", "") == grpo_trainer.__name__ else f for f in functions]

    def close_environments(self) -> None:
        """Of one whose reset failed nobody knows the state: TRL must not reset it again."""
        for pool in self._environment_pool.values() if self.environment_factories is not None else ():
            pool[:] = [instance for instance in pool if id(instance) not in self.reset_errors]
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
def resets_caught(environments: Collection[object]) -> Iterator[dict[int, str]]:
    """Inside, the first reset of each instance returns None instead of raising; yields errors by instance.

    It is the class that is changed, because an instance may take no attributes; later resets, as by a tool, are plain.
    """
    errors: dict[int, str] = {}
    waiting = {id(env) for env in environments}

    def caught(kind: type) -> Callable[..., Any]:
        plain = inspect.getattr_static(kind, "reset")

        @functools.wraps(plain)
        def reset(env: object, *args: Any, **row: Any) -> Any:
            bound = plain.__get__(env, kind)
            if id(env) not in waiting:
                return bound(*args, **row)
            waiting.discard(id(env))
            try:
                with failures_told():
                    observation = bound(*args, **row)
            except EnvironmentFailed as failure:
                errors[id(env)] = str(failure)
                return None
            return checked_observation(env, observation)

        return reset

    with ExitStack() as stack:
        replaced = {kind: caught(kind) for kind in {type(env) for env in environments}}
        for kind, reset in replaced.items():
            stack.enter_context(swapped_in_class(kind, reset))
        yield errors


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
