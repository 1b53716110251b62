"""Does the rollout waste steps? Reads calls and what came back. Penalties only, from -1.0 to 0.0, per turn."""

from collections.abc import Collection
from typing import Any

from ..trajectory import CallStatus, ToolCall
from .reading import Rollout, Turn
from .reward import TurnReward, is_number
from .values import as_json, is_whole, names_of

WORTH_RETRYING = (CallStatus.ERROR, CallStatus.TIMEOUT, CallStatus.ABORTED)


def step_cost(bound: int, *, per_step: float = 0.1) -> TurnReward:
    """Minus `per_step` for each turn with calls over `bound`, given to that turn, down to -1.0.

    Example:
        step_cost(2)     a rollout with four rounds of calls and an answer: turns 0, 0, -0.1, -0.1, 0, together -0.2
    """
    if not is_whole(bound) or bound < 0 or not (is_number(per_step) and 0 < per_step <= 1):
        raise ValueError(
            f"step_cost got bound={bound!r}, per_step={per_step!r}; expected a whole bound >= 0 and 0 < per_step <= 1"
        )

    def turn_score(rollout: Rollout) -> list[float]:
        scores, steps, left = [], 0, 1.0
        for turn in rollout.turns:
            steps += bool(turn.calls) or turn.unreadable
            cost = min(left, per_step) if steps > bound and (turn.calls or turn.unreadable) else 0.0
            left -= cost
            scores.append(-cost)
        return scores

    return TurnReward(turn_score, name="step_cost", low=-1.0, high=0.0)


def repeated_calls(*, ignore: Collection[str] = ()) -> TurnReward:
    """Minus the share of calls that the rollout made before, with the same arguments; None without calls.

    A call again after its tool failed (error, time-out) is a retry, not a repetition.

    Args:
        ignore: tools whose answer changes, for which asking again makes sense: `("look", "next_page")`.
    """
    ignore = names_of("repeated_calls", "ignore", ignore)

    def turn_score(rollout: Rollout) -> list[float] | None:
        total, seen, repeats = len(rollout.calls), set(), []
        for turn in rollout.turns:
            repeats.append(0)
            for position, call in enumerate(turn.calls):
                repeats[-1] += call.name not in ignore and identity(call) in seen
                result = turn.results[position] if position < len(turn.results) else None
                if result is None or result.status not in WORTH_RETRYING:
                    seen.add(identity(call))
        return [-count / total for count in repeats] if total else None

    return TurnReward(turn_score, name="repeated_calls", low=-1.0, high=0.0)


def dead_loop(*, times: int = 3, longest_period: int = 3) -> TurnReward:
    """-1.0 if the rollout goes round in circles, given to the turn that closes the circle, else 0.0.

    A circle: up to `longest_period` turns whose calls *and* results come back the same, `times` times in a row. Asking
    again until something changes is none, since the result differs.
    """
    if not is_whole(times) or not is_whole(longest_period) or times < 2 or longest_period < 1:
        raise ValueError(
            f"dead_loop got times={times!r}, longest_period={longest_period!r}; expected whole numbers, times >= 2 and "
            "longest_period >= 1"
        )

    def turn_score(rollout: Rollout) -> list[float]:
        seen: list[Any] = []
        scores = [0.0] * len(rollout.turns)
        for number, turn in enumerate(rollout.turns):
            seen.append(round_trip(turn))
            if any(goes_round(seen, period, times) for period in range(1, longest_period + 1)):
                scores[number] = -1.0
                break
        return scores

    return TurnReward(turn_score, name="dead_loop", low=-1.0, high=0.0)


def goes_round(seen: list[Any], period: int, times: int) -> bool:
    """Whether the last `period * times` entries are one block of `period`, repeated, and none of them is empty."""
    tail = seen[-period * times :]
    return len(tail) == period * times and all(tail) and tail == tail[:period] * times


def round_trip(turn: Turn) -> tuple[Any, ...]:
    """What was called and what came back; () for a turn without calls."""
    if not turn.calls and not turn.unreadable:
        return ()
    contents = tuple(result.content for result in turn.results)
    return (*map(identity, turn.calls), contents, turn.raw if turn.unreadable else "")


def identity(call: ToolCall) -> tuple[str, str]:
    """Equal for calls of one tool with equal arguments, whatever the order of their keys."""
    return call.name, as_json(call.arguments)
