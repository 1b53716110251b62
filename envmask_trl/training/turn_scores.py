"""What each turn was scored, asked of reward functions and environments, gathered over all processes.

class Searches:                                       a reward function that also scores turns
    def __call__(self, trajectories, **columns) -> list[float]: ...
    def turn_rewards(self, trajectories, **columns) -> list[list[float] | None]: ...    one number per model turn

class Maze:                                           an environment may, too
    def get_turn_rewards(self) -> list[float]: ...    one number per model turn; fewer: the last turns have none
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..rewards.turns import check_turn_rewards
from ..rewards.values import turn_values_of
from ..trajectory import Source, StopReason, Trajectory

TurnScores = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RowTurns:
    """The turns of one rollout, small enough to be sent to all processes.

    Example:
        RowTurns(num_turns=2, scores=((0.0, 1.0), None), states=("5b1e", "9f2c"), dropped=False)
    """

    num_turns: int
    scores: tuple[TurnScores | None, ...]  # by function; None: it scored the rollout as a whole
    states: tuple[str, ...]  # names the state before each turn: equal names, equal states
    dropped: bool


def gather_turns(
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    trajectories: Sequence[Trajectory],
    *,
    environments: Sequence[object] | None,
    dropped: Sequence[bool],
    keywords: Mapping[str, Any],
) -> list[RowTurns]:
    """The turns of all rollouts of all processes; one collective, so every process must call it.

    Scores are by function, and one more column for environments that have no reward among the functions.

    Raises:
        ValueError: scores for other rollouts or turns than there are.
    """
    by_function = [
        function_scores(function, name, trajectories, keywords) for function, name in zip(functions, names, strict=True)
    ]
    by_function.append([None] * len(trajectories))
    for row, (environment, trajectory) in enumerate(zip(environments or (), trajectories, strict=bool(environments))):
        kind = type(environment).__name__
        column = names.index(kind) if kind in names else -1
        by_function[column][row] = environment_scores(environment, trajectory) or by_function[column][row]
    rows = [
        RowTurns(trajectory.num_turns, scores, states_before_turns(trajectory), is_dropped)
        for trajectory, scores, is_dropped in zip(trajectories, zip(*by_function, strict=True), dropped, strict=True)
    ]
    return list(gather_object(rows))


def function_scores(
    function: Callable[..., Any], name: str, trajectories: Sequence[Trajectory], keywords: Mapping[str, Any]
) -> list[TurnScores | None]:
    """What the function's `turn_rewards` says of each rollout; None of all if it has no such method."""
    ask = getattr(function, "turn_rewards", None)
    if ask is None:
        return [None] * len(trajectories)
    num_turns = [trajectory.num_turns for trajectory in trajectories]
    found = check_turn_rewards(name, ask(**keywords), num_turns, allow_unscored=True)
    return [tuple(values) if values else None for values in found]


def environment_scores(environment: Any, trajectory: Trajectory) -> TurnScores | None:
    """What the environment's optional `get_turn_rewards` says; turns it never saw, as the answer, have no score.

    One that failed is not asked.
    """
    ask = getattr(environment, "get_turn_rewards", None)
    if ask is None or not trajectory.num_turns or trajectory.stop_reason is StopReason.ENV_ERROR:
        return None
    whose = f"{type(environment).__name__}.get_turn_rewards returned"
    values = turn_values_of(whose, ask(), allow_unscored=True)
    if len(values) > trajectory.num_turns:
        raise ValueError(
            f"{whose} {len(values)} numbers, but the model took {trajectory.num_turns} turns; give at most one number "
            "for each"
        )
    return (*values, *[math.nan] * (trajectory.num_turns - len(values)))


def states_before_turns(trajectory: Trajectory) -> tuple[str, ...]:
    """A name of the state in which each turn was sampled.

    It is what the environment's `state_key()` said then, or else the ids of the observations since the turn before:
    the state as the model was last shown it. Before the first turn that is the prompt.

    Example: ("5b1e", "9f2c", "5b1e")  # the third turn stands where the first one stood, says state_key()
    """
    names: list[str] = []
    shown = list(trajectory.prompt_ids)
    for segment in trajectory.completion_segments:
        if segment.source is Source.ENV:
            shown += segment.token_ids
        elif segment.source is Source.MODEL:
            key = trajectory.state_keys[len(names)] if trajectory.state_keys else None
            names.append(fingerprint("state", key) if key is not None else fingerprint("shown", *shown))
            shown = []
    return tuple(names)


def fingerprint(*values: object) -> str:
    """Equal in every process for equal values."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def turn_values(rows: Sequence[RowTurns], rewards: Tensor, *, at_end: bool) -> Tensor:
    """Scores of turns by function: [N, F] and the turns' own -> [N, K, F + 1]; NaN: no score, or no such turn.

    Where a function scored the rollout as a whole, each of its turns has that reward, or, `at_end`, the last one has
    it and the others 0; a turn that a function of turns left out earned 0 then. A rollout in which nothing was sampled
    has one turn, without tokens. What was dropped has none.

    Example (one function of turns, one of the whole; 2 turns):
        turn_values([RowTurns(2, ((0.0, 1.0), None, None), ...)], [[1.0, 0.5]], at_end=False)
        [[[0.0, 0.5, nan], [1.0, 0.5, nan]]]
    """
    most = max(max(row.num_turns for row in rows), 1)
    values = rewards.new_full((len(rows), most, rewards.size(1) + 1), torch.nan)
    for index, row in enumerate(rows):
        turns = max(row.num_turns, 1)
        for column, scores in enumerate(() if row.dropped else row.scores):
            if scores is not None:
                own = rewards.new_tensor(scores)
                values[index, :turns, column] = own.nan_to_num(nan=0.0) if at_end else own
            elif column < rewards.size(1) and not rewards[index, column].isnan():
                values[index, :turns, column] = 0.0 if at_end else rewards[index, column]
                values[index, turns - 1, column] = rewards[index, column]
    return values
