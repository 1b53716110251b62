"""What rewards are computed from and what they return, checked before TRL sums them. Knows functions and rows.

rows          P1 P1 P2 P2     groups of neighbours, G = 2: the baseline of a row is the mean of its group
returned      [1.0, None, 0.0, 1.0]     one number, or None, for each row
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ..rewards.functions import is_async
from ..rewards.values import reward_values


def checked_functions(functions: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The same reward functions; one that returns anything but a number or None for each rollout is named.

    A reward model (a module) is TRL's to score with, and stays as it is.

    Example:
        checked_functions([lambda **columns: None], ["mine"])[0](completions=["a"])
        ValueError: reward function 'mine' returned None, expected a list with one number, or None, for each of 1 ...
    """
    return [
        function if isinstance(function, nn.Module) else checked_function(function, name)
        for function, name in zip(functions, names, strict=True)
    ]


def checked_function(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    whose = f"reward function {name!r}"

    @functools.wraps(function, updated=())
    def now(**columns: Any) -> list[float | None]:
        return reward_values(whose, function(**columns), len(columns["completions"]))

    @functools.wraps(function, updated=())
    async def later(**columns: Any) -> list[float | None]:
        return reward_values(whose, await function(**columns), len(columns["completions"]))

    return later if is_async(function) else now


def check_groups(inputs: Sequence[Mapping[str, Any]], *, group_size: int, first: int) -> None:
    """Raise where a group of neighbours has rows of different prompts: each row's baseline would be of other tasks.

    Args:
        inputs: data set rows of this process, a prompt once for each rollout.
        group_size: rollouts of one prompt.
        first: the number of the first row among the rows of all processes.

    Raises:
        ValueError: names the rows.
    """
    for row in range(1, len(inputs)):
        if (first + row) % group_size and inputs[row].get("prompt") != inputs[row - 1].get("prompt"):
            raise ValueError(
                f"rows {first + row - 1} and {first + row} are of one group of {group_size} rollouts but have other "
                "prompts; a sampler must give each prompt num_generations times in a row: P1 P1 P2 P2, not P1 P2 P1 P2"
            )
