"""The keywords that a trainer passes to reward functions, checked and cut into rows. Knows types: reads no text.

keywords   completions=[c0, c1], answer=["7", "8"], trainer_state=...
rows       {"completions": c0, "answer": "7"}, {"completions": c1, "answer": "8"}     what is no column is left out
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ..trajectory import Trajectory
from .values import described


@runtime_checkable
class Array(Protocol):
    """An array or a tensor, of which columns are made: `numpy.array(["7", "8"])`, `torch.tensor([7, 8])`."""

    ndim: Any

    def tolist(self) -> Any: ...


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dict per rollout, its entry in every column; keywords that are no lists (a logger, a state) are left out.

    Raises:
        ValueError: neither `trajectories` nor `completions`, entries that are none, or a column of another length.
    """
    trajectories, completions = columns.get("trajectories"), columns.get("completions")
    if trajectories is None and completions is None:
        raise ValueError(f"a reward needs `trajectories` or `completions`, found the keywords {sorted(columns)}")
    name = "completions" if trajectories is None else "trajectories"
    rollouts = as_column(columns[name])
    if rollouts is None:
        raise ValueError(f"`{name}` is {described(columns[name])}, expected a list with one entry for each rollout")
    for index, rollout in enumerate(rollouts):
        check_rollout(index, rollout, is_trajectory=trajectories is not None)
    lists = {key: column for key, values in columns.items() if (column := as_column(values)) is not None}
    for key, values in lists.items():
        if len(values) != len(rollouts):
            raise ValueError(
                f"the column {key!r} has {len(values)} entries for {len(rollouts)} rollouts; give one for each"
            )
    return [{key: values[index] for key, values in lists.items()} for index in range(len(rollouts))]


def as_column(values: Any) -> Sequence[Any] | None:
    """A list, or what an array or tensor holds as one; None of everything else."""
    if isinstance(values, Sequence):
        return None if isinstance(values, str | bytes) else values
    return values.tolist() if isinstance(values, Array) and values.ndim else None


def check_rollout(index: int, rollout: Any, *, is_trajectory: bool) -> None:
    """Raise ValueError where an entry of `trajectories` or `completions` is none."""
    if is_trajectory:
        if not isinstance(rollout, Trajectory):
            raise ValueError(f"`trajectories` has {described(rollout)} at rollout {index}, expected a Trajectory")
        return
    if isinstance(rollout, str):
        return
    if not isinstance(rollout, Sequence):
        raise ValueError(
            f"`completions` has {described(rollout)} at rollout {index}, expected a text or a list of messages"
        )
    for place, message in enumerate(rollout):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(
                f"`completions` has {described(message)} as message {place} of rollout {index}, expected a dict with "
                "role and content"
            )
