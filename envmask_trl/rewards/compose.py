"""One reward out of an outcome and terms about the way to it. Knows rewards, weights and turns: no rule of its own.

outcome  exact_answer         [0, 1]   weight 1
process  call_validity       [-1, 0]   weight 0.2      reward = outcome + 0.2 * validity + 0.1 * repeated
         repeated_calls      [-1, 0]   weight 0.1      0.2 + 0.1 < 1: no way of getting there outweighs being right
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .functions import is_async, name_of
from .reading import Rollout, read_rollouts
from .reward import Reward, is_number, only_together
from .turns import Density, GivesTurnRewards, at_density, check_turn_rewards
from .values import as_list, described, reward_values

Values = list[float | None]
Term = tuple[Any, float]  # (reward, weight)


def compose(
    outcome: Reward,
    process: Sequence[Term] = (),
    *,
    outcome_weight: float = 1.0,
    density: Density = "sparse",
    discount: float = 1.0,
    allow_process_to_outweigh: bool = False,
    name: str = "composed",
) -> "ComposedReward":
    """outcome_weight * outcome + sum of weight * term, as one reward function that also knows the reward of each turn.

    A rollout with the best outcome is worth more than one with the worst, whatever the process terms say: their
    weighted ranges together must be smaller than the outcome's. An outcome of None makes the whole reward None (process
    alone is not trained); a process term of None is left out. Each term is logged as `terms/{name}`, its mean over the
    rollouts it applies to, and as a column of TRL's completions table. A weight of 0 logs a term and does nothing else.

    Example:
        reward = compose(
            outcome=rules.exact_answer("answer"),
            process=[(rules.call_validity(tools), 0.2), (rules.repeated_calls(), 0.1), (hacking.fake_observation(), 0)],
            density="dense",
        )
        EnvMaskGRPOTrainer(model, reward_funcs=reward, ...)

    Args:
        outcome: a reward with a range; `bounded` gives one to any function.
        process: (reward, weight) pairs.
        density: what `turn_rewards` gives to the turns. "sparse": all of it to the last turn; "dense": what a turn
            earned to that turn, and what belongs to no turn, as the outcome, to the last; "returned": dense, then each
            turn also gets what followed it, times `discount` per turn.
        allow_process_to_outweigh: skip the check on the weights.

    Raises:
        ValueError: process terms that together outweigh the outcome, a term without a range, or two of one name.
    """
    terms = [(outcome, outcome_weight), *pairs(process)]
    check_terms(terms)
    if density not in ("sparse", "dense", "returned") or not (is_number(discount) and 0 <= discount <= 1):
        raise ValueError(
            f"compose got density={density!r}, discount={discount!r}; expected 'sparse', 'dense' or 'returned', and a "
            "discount from 0 to 1"
        )
    if not allow_process_to_outweigh:
        check_weights(terms)
    return ComposedReward(terms, density, discount, name)


def bounded(function: Callable[..., Sequence[float | None]], *, low: float, high: float) -> Reward:
    """A reward function of your own with its range; its `turn_rewards` are kept.

    As of every reward, a value outside of the range is an error, and a rollout whose environment failed gets None.

    Example:
        compose(rules.exact_answer(), [(bounded(politeness, low=0.0, high=1.0), 0.5)])
    """
    return BoundedReward(function, low, high)


class BoundedReward(Reward):
    """See `bounded`."""

    def __init__(self, function: Callable[..., Sequence[float | None]], low: float, high: float):
        if not callable(function) or is_async(function):
            kind = "an async function, which nobody awaits here" if callable(function) else described(function)
            raise ValueError(f"bounded got {kind}, expected a function that returns a list of rewards")
        super().__init__(only_together, name=name_of(function), low=low, high=high)
        self.function = function
        if isinstance(function, GivesTurnRewards):
            self.turn_rewards = function.turn_rewards

    def __call__(self, **columns: Any) -> Values:
        rollouts = read_rollouts(columns)
        values = reward_values(f"reward function {self.__name__!r}", self.function(**columns), len(rollouts))
        return self.checked(None if rollout.failed else value for rollout, value in zip(rollouts, values, strict=True))


class ComposedReward(Reward):
    """See `compose`. `turn_rewards` of the rollouts that were just scored scores none of them again."""

    def __init__(self, terms: list[Term], density: Density, discount: float, name: str):
        (outcome, outcome_weight), *process = terms
        low = outcome_weight * outcome.low + sum(weight * span(term)[0] for term, weight in process)
        high = outcome_weight * outcome.high + sum(weight * span(term)[1] for term, weight in process)
        super().__init__(only_together, name=name, low=low, high=high)
        self.terms, self.density, self.discount = terms, density, discount
        self.scored: tuple[list[Any], list[Values]] = ([], [])  # the rollouts of the latest call, and their terms

    def __call__(self, **columns: Any) -> Values:
        values = [term(**columns) for term, _ in self.terms]
        self.scored = keys_of(columns), values
        log_terms(self.__name__, [term.__name__ for term, _ in self.terms], values, columns)
        return self.checked(self.weighted(row) for row in zip(*values, strict=True))

    def weighted(self, row: Sequence[float | None]) -> float | None:
        """The reward of one rollout from its terms, the outcome first."""
        if row[0] is None:
            return None
        return sum(weight * value for (_, weight), value in zip(self.terms, row, strict=True) if value is not None)

    def turn_rewards(self, **columns: Any) -> list[list[float] | None]:
        """Per rollout one number per turn of the model, at the density asked for; None where the outcome is None."""
        rollouts = read_rollouts(columns)
        num_turns = [len(rollout.turns) for rollout in rollouts]
        keys, values = self.scored
        known = len(keys) == len(rollouts) and all(a is b for a, b in zip(keys, keys_of(columns), strict=True))
        if not known:
            values = [term(**columns) for term, _ in self.terms]
        sums: list[list[float] | None] = [
            None if outcome is None else [0.0] * turns for outcome, turns in zip(values[0], num_turns, strict=True)
        ]
        for (term, weight), of_term in zip(self.terms, values, strict=True):
            for total, turns in zip(sums, turns_of_term(term, of_term, rollouts, columns), strict=True):
                if total:
                    total[:] = [have + weight * value for have, value in zip(total, turns, strict=True)]
        return [None if turns is None else at_density(turns, self.density, self.discount) for turns in sums]


def turns_of_term(
    term: Reward, values: Values, rollouts: Sequence[Rollout], columns: Mapping[str, Any]
) -> list[list[float]]:
    """What a term gives to each turn; a value that belongs to no turn goes to the last one."""
    num_turns = [len(rollout.turns) for rollout in rollouts]
    known: Sequence[list[float] | None] = [None] * len(values)
    if isinstance(term, GivesTurnRewards):
        known = check_turn_rewards(term.__name__, term.turn_rewards(**columns), num_turns)
    return [
        turns if turns is not None else ([0.0] * (length - 1) + [value or 0.0] if length else [])
        for turns, value, length in zip(known, values, num_turns, strict=True)
    ]


def keys_of(columns: Mapping[str, Any]) -> list[Any]:
    """The objects that tell whether two calls are about the same rollouts."""
    trajectories = columns.get("trajectories")
    return list(trajectories if trajectories is not None else columns.get("completions") or ())


def log_terms(name: str, terms: Sequence[str], values: Sequence[Values], columns: Mapping[str, Any]) -> None:
    """Through the loggers that TRL passes to reward functions, where it does."""
    log_metric, log_extra = columns.get("log_metric"), columns.get("log_extra")
    for term, of_term in zip(terms, values, strict=True):
        applies = [value for value in of_term if value is not None]
        if log_metric is not None and applies:
            log_metric(f"terms/{term}", sum(applies) / len(applies))
        if log_extra is not None:
            log_extra(f"{name}/{term}", list(of_term))


def pairs(process: Any) -> list[Term]:
    """The process terms, each of which must be a reward and its weight.

    Raises:
        ValueError: no list, or an entry that is no pair.
    """
    listed = as_list(process)
    if listed is None:
        raise ValueError(f"compose got {described(process)} as process, expected a list of (reward, weight) pairs")
    for place, entry in enumerate(listed):
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise ValueError(
                f"compose got {described(entry)} as entry {place} of process, expected a pair (reward, weight) such as "
                "(rules.repeated_calls(), 0.1)"
            )
    return [(term, weight) for term, weight in listed]


def check_terms(terms: Sequence[Term]) -> None:
    for term, weight in terms:
        if not isinstance(term, Reward):
            found = repr(name_of(term)) if callable(term) else described(term)
            raise ValueError(
                f"compose got {found}, whose range is unknown; give a reward such as rules.exact_answer() (called), or "
                "a function of your own as bounded(function, low=..., high=...)"
            )
        if isinstance(term, ComposedReward):
            raise ValueError(f"compose got {term.__name__!r}, which is composed itself; list its terms in one compose")
        if not is_number(weight) or weight < 0:
            raise ValueError(f"compose got the weight {weight!r} for {term.__name__!r}, expected a number, 0 or more")
    names = [term.__name__ for term, _ in terms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"compose got two terms named {twice}, which would be logged as one; set `__name__` of one")


def check_weights(terms: Sequence[Term]) -> None:
    """Raise if process terms together can move the reward as far as the outcome can."""
    (outcome, outcome_weight), *process = terms
    reach = outcome_weight * (outcome.high - outcome.low)
    spans = {term.__name__: weight * (span(term)[1] - span(term)[0]) for term, weight in process}
    if sum(spans.values()) >= reach:
        shown = " + ".join(f"{name} {width:g}" for name, width in spans.items()) or "none"
        raise ValueError(
            f"process terms can move the reward by {sum(spans.values()):g} ({shown}), the outcome "
            f"{outcome.__name__} by {reach:g}; lower their weights, or say allow_process_to_outweigh=True"
        )


def span(term: Reward) -> tuple[float, float]:
    """The least and the most that a process term adds; one that does not apply adds nothing."""
    return min(term.low, 0.0), max(term.high, 0.0)
