"""What the loop asks of a sampler, and one that plays given turns. Knows token ids: no tools, no templates."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Context:
    """All tokens of one live rollout so far. Between two calls with the same id, ids are only ever appended.

    Example:
        Context(id=3, token_ids=(1, 2, 3, 10, 19, 20, 21))
    """

    id: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled turn, its stop token included.

    Example:
        Sample(token_ids=(10, 11, 19), logprobs=(-0.3, -1.2, -0.1), finish_reason="stop")
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None  # natural log of the sampling distribution; None where the engine tells none
    finish_reason: FinishReason  # "stop": ended by a stop token or stop string; "length": cut by its budget

    def __post_init__(self) -> None:
        ids, logprobs = as_tuple(self.token_ids), None if self.logprobs is None else as_tuple(self.logprobs)
        object.__setattr__(self, "token_ids", ids)
        object.__setattr__(self, "logprobs", logprobs)
        wrong = [token_id for token_id in ids if not isinstance(token_id, Integral) or token_id < 0]
        if wrong or (logprobs is not None and len(logprobs) != len(ids)):
            found = f"{wrong[0]!r} among its ids" if wrong else f"{len(ids)} ids but {len(logprobs or ())} log-probs"
            raise ValueError(f"a sample has {found}; expected ids from 0 on, and a log-prob for each or None at all")
        if self.finish_reason not in ("stop", "length"):
            raise ValueError(
                f"finish_reason is {self.finish_reason!r}, expected 'stop' (the model ended its turn) or 'length' (its "
                "budget did, and nothing of the turn is run)"
            )


def as_tuple(values: Any) -> tuple:
    """Of a list, an array or a tensor of one row."""
    return tuple(values.tolist() if hasattr(values, "tolist") else values)


class Sampler(Protocol):
    """Samples one turn for every context, in order. `max_new_tokens` has one budget per context.

    One that has `stop_ids` tells the loop at which ids its turns end.
    """

    def sample(self, contexts: list[Context], max_new_tokens: list[int]) -> list[Sample]: ...


class OverlappingSampler(Sampler, Protocol):
    """A sampler whose rollouts need not all be asked at once: the loop uses this where `overlap_tools` is true.

    Then rollouts whose tools are at work are left out of a call and named in `parked`; they come back later. What a
    rollout samples must not depend on when. `on_turn(row, sample)` is told of each turn when it ends, while the others
    are still being sampled; `row` is its place in `contexts`. Processes call it unequally often: it must not wait for
    those of other processes.
    """

    overlap_tools: bool

    def sample(
        self,
        contexts: list[Context],
        max_new_tokens: list[int],
        *,
        parked: Collection[int] = (),
        on_turn: Callable[[int, Sample], None] | None = None,
    ) -> list[Sample]: ...


class ScriptedSampler:
    """Plays given turns, for tests and notebooks: rollout i plays the turns of script i.

    A turn longer than its budget is cut as a real engine would cut it. Log-probs are made up from the position, so
    that a misalignment shows.

    Example:
        ScriptedSampler([[(10, 19), (11, 19)], [(12, 19)]])
    """

    def __init__(self, scripts: Iterable[Sequence[Sequence[int]]], *, logprobs: bool = True):
        self.scripts = [[tuple(turn) for turn in script] for script in scripts]
        self.turns_played = [0] * len(self.scripts)
        self.seen: list[list[Context]] = []  # the contexts of every call, for assertions
        self.logprobs = logprobs

    def sample(self, contexts: list[Context], max_new_tokens: list[int]) -> list[Sample]:
        self.seen.append(list(contexts))
        return [self._next(context, budget) for context, budget in zip(contexts, max_new_tokens, strict=True)]

    def _next(self, context: Context, budget: int) -> Sample:
        if context.id >= len(self.scripts):
            raise ValueError(f"rollout {context.id} has no script, there are {len(self.scripts)}; give one per prompt")
        turn_number = self.turns_played[context.id]
        script = self.scripts[context.id]
        if turn_number >= len(script):
            raise ValueError(
                f"rollout {context.id} asks for turn {turn_number}, but its script has {len(script)} turns"
            )
        self.turns_played[context.id] += 1
        ids = script[turn_number][:budget]
        logprobs = tuple(-0.01 * (position + 1) for position in range(len(ids))) if self.logprobs else None
        return Sample(ids, logprobs, "length" if len(script[turn_number]) > budget else "stop")
