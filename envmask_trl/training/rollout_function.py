"""A user's own rollout function: its rows are checked before anything is computed with them. Knows lists: no tensors.

TRL pads a mask that is too short with ones, takes one under another name for a column of the rewards, and hands every
row the whole of an array of scores; here the row or the column is named instead.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..packing import as_lists, check_ids, pack_rollouts

REQUIRED = ("prompt_ids", "completion_ids", "logprobs")  # what TRL asks of a rollout function
COLUMNS = (*REQUIRED, "env_mask")


def checked_rollout_func(rollout_func: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The function with what it returns as lists, one entry a row, and with an `env_mask`."""

    def rollout(prompts: list, trainer: Any) -> dict[str, Any]:
        output = rollout_func(prompts, trainer)
        vocab_size = trainer.model.config.get_text_config().vocab_size
        columns = checked_columns(output, num_prompts=len(prompts), vocab_size=vocab_size)
        further = further_columns(output, columns["completion_ids"], has_mask="env_mask" in columns)
        columns.setdefault("env_mask", [sampled(ids, trainer.eos_token_ids) for ids in columns["completion_ids"]])
        return {**further, **columns}

    return rollout


def checked_columns(output: Any, *, num_prompts: int, vocab_size: int) -> dict[str, Any]:
    """The token columns of what a rollout function returned, as lists; `env_mask` only if it gave one."""
    missing = [name for name in REQUIRED if not isinstance(output, Mapping) or name not in output]
    if missing:
        raise ValueError(
            f"rollout_func returned a {type(output).__name__} without {', '.join(missing)}; expected a dict with "
            f"{', '.join(REQUIRED)} and, unless all was sampled, env_mask"
        )
    given = {name: output.get(name) for name in COLUMNS}
    columns: dict[str, Any] = {name: as_lists(rows) for name, rows in given.items() if rows is not None}
    for name in ("prompt_ids", "completion_ids"):
        for index, ids in enumerate(columns.get(name, ())):
            check_ids(index, name, ids)
            if not ids:
                raise ValueError(f"row {index}: {name} is empty; return at least one token")
            if max(ids) >= vocab_size:
                raise ValueError(f"row {index}: {name} holds {max(ids)}, but the model knows ids below {vocab_size}")
    if len(columns["completion_ids"]) != num_prompts:
        raise ValueError(
            f"rollout_func returned {len(columns['completion_ids'])} completions for {num_prompts} prompts"
        )
    if all(values is None for values in columns.get("logprobs", ())):
        columns["logprobs"] = None
    masks = {"env_mask": [[1] * len(ids) for ids in columns["completion_ids"]]}
    present = {name: rows for name, rows in columns.items() if rows is not None}
    pack_rollouts(masks | present, max_total_length=1)  # for its checks; the cut is not used
    return columns


def further_columns(
    output: Mapping[str, Any], completion_ids: Sequence[Sequence[int]], *, has_mask: bool
) -> dict[str, Any]:
    """What the reward functions are given beside the tokens: of a column its row's entry, any other value as it is.

    Raises:
        ValueError: a column of another length, or one that can only be the mask, under another name.
    """
    further: dict[str, Any] = {}
    for name, values in output.items():
        if name in COLUMNS:
            continue
        if not isinstance(values, list | tuple) and not getattr(values, "shape", ()):
            further[name] = values
            continue
        rows = further[name] = as_lists(values)
        if len(rows) != len(completion_ids):
            raise ValueError(
                f"rollout_func returned {len(rows)} entries in {name!r} for {len(completion_ids)} prompts; return one "
                "for each, or a value that is no list"
            )
        if not has_mask and is_mask(rows, completion_ids):
            raise ValueError(
                f"rollout_func returned no env_mask, and in {name!r} a 0 or 1 for each token of each completion; name "
                "it env_mask (1: sampled by the model), or every token would be trained"
            )
    return further


def is_mask(rows: Sequence[Any], completion_ids: Sequence[Sequence[int]]) -> bool:
    """Whether it has a 0 or 1 for every token, and not 1 for all; of single tokens nobody could tell."""
    pairs = zip(rows, completion_ids, strict=True)
    fits = all(isinstance(row, list | tuple) and len(row) == len(ids) for row, ids in pairs)
    if not fits or max(map(len, completion_ids)) == 1:
        return False
    values = [value for row in rows for value in row]
    return all(isinstance(value, int | float) and value in (0, 1) for value in values) and not all(values)


def sampled(completion_ids: Sequence[int], eos_token_ids: Collection[int]) -> list[int]:
    """The mask of a completion that is one turn of the model: what stands behind its end is padding.

    Example:
        sampled([10, 11, 19, 19, 19], {19}) == [1, 1, 1, 0, 0]
    """
    end = next((place for place, token in enumerate(completion_ids) if token in eos_token_ids), len(completion_ids))
    return [int(place <= end) for place in range(len(completion_ids))]
