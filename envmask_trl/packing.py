"""Fits rollouts to a length and keeps everything that belongs to a row cut at the same place.

`pack_rollouts` is a batched `datasets.map` function; the trainer calls the same function on its own rollouts, so a
reward is computed on exactly the tokens that the loss sees. Knows columns of ids: no tensors, no model.
"""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol

REQUIRED_COLUMNS = ("prompt_ids", "completion_ids", "env_mask")
PARALLEL_COLUMNS = ("logprobs", "turn_index", "sources", "loss_mask")  # optional, one value per completion token


class Decoder(Protocol):
    """The one method of a tokenizer that packing needs."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> Any: ...


def pack_rollouts(
    batch: Mapping[str, Sequence[Any]],
    *,
    max_total_length: int,
    tokenizer: Decoder | None = None,
    parallel_columns: Sequence[str] = PARALLEL_COLUMNS,
    skip_special_tokens: bool = True,
) -> dict[str, list[Any]]:
    """Cut rollouts to `max_total_length` tokens and align their parallel columns and text with what is kept.

    The whole prompt is kept and the completion's tail is cut. Only a prompt longer than the limit is itself cut, on
    the left, and then its completion is dropped whole: nothing that was sampled is trained behind a different prompt.

    Example (limit 5):
        prompt_ids [1, 2]  completion_ids [10, 11, 20, 21, 12]  env_mask [1, 1, 0, 0, 1]  logprobs [-.1, -.2, 0, 0, -1]
        prompt_ids [1, 2]  completion_ids [10, 11, 20]          env_mask [1, 1, 0]        logprobs [-.1, -.2, 0]
        prompt_length 2    unfinished True

    Use as a map function:
        dataset.map(pack_rollouts, batched=True, fn_kwargs={"max_total_length": 4096, "tokenizer": tokenizer})

    Args:
        batch: columns `prompt_ids`, `completion_ids`, `env_mask` (over the completion; 1 = sampled), lists, tensors or
            arrays of whole numbers per row; optionally the `parallel_columns` and `unfinished` (bool per row); other
            columns stay untouched, with a warning if one looks parallel and a row is cut.
        max_total_length: most tokens of prompt + completion, at least 1.
        tokenizer: decodes the kept ids into the two text columns; without it there are none.
        parallel_columns: names of further columns with one value per completion token. Of the default ones, those of
            saved rollouts among them, absent ones are ignored.
        skip_special_tokens: leave control tokens out of the text columns.

    Returns:
        The given columns, cut, and
        `prompt_length`: tokens of the kept prompt,
        `unfinished`: True where the column said so already or anything was cut,
        `completion_text`: the decoded kept completion, observations included,
        `model_text`: the same without what the model did not write; its turns are joined by a newline.

    Raises:
        ValueError: a column is missing, the lengths of one row differ, an id is no whole number of at least 0, or a
            mask holds other values than 0 and 1.
    """
    if isinstance(parallel_columns, str):
        raise ValueError(f"parallel_columns is {parallel_columns!r}, expected a list of names; write [name]")
    absent = [name for name in parallel_columns if name not in batch and name not in PARALLEL_COLUMNS]
    if absent:
        raise ValueError(f"parallel_columns names {absent}, which the batch does not have; found {sorted(batch)}")
    batch = {name: as_lists(values) for name, values in batch.items()}
    parallel = ["completion_ids", "env_mask", *(name for name in parallel_columns if _present(batch, name))]
    _check(batch, parallel, max_total_length)
    _warn_of_uncut(batch, parallel, max_total_length)
    rows = [_cut(row, parallel, max_total_length) for row in _rows(batch)]
    if tokenizer is not None:
        for row in rows:
            row.update(_texts(row, tokenizer, skip_special_tokens))
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {name: [] for name in batch}


def model_runs(token_ids: Sequence[int], env_mask: Sequence[int]) -> list[list[int]]:
    """The model's turns: the runs of ids under ones. `[10, 19, 20, 11]` under `1 1 0 1` -> `[[10, 19], [11]]`."""
    runs: list[list[int]] = []
    previous = 0
    for token, own in zip(token_ids, env_mask, strict=True):
        if own and not previous:
            runs.append([])
        if own:
            runs[-1].append(token)
        previous = own
    return runs


def _cut(row: dict[str, Any], parallel: list[str], max_total_length: int) -> dict[str, Any]:
    """Apply the limit to one row; every parallel column is cut at the same place."""
    prompt_ids = list(row["prompt_ids"])
    room = max(max_total_length - len(prompt_ids), 0)
    is_cut = len(prompt_ids) > max_total_length or len(row["completion_ids"]) > room
    kept_prompt = prompt_ids[-max_total_length:]
    return {
        **row,
        **{name: list(row[name])[:room] for name in parallel},
        "prompt_ids": kept_prompt,
        "prompt_length": len(kept_prompt),
        "unfinished": bool(row.get("unfinished")) or is_cut,
    }


def _texts(row: dict[str, Any], tokenizer: Decoder, skip_special_tokens: bool) -> dict[str, str]:
    ids, env_mask = row["completion_ids"], row["env_mask"]
    turns = [tokenizer.decode(run, skip_special_tokens=skip_special_tokens) for run in model_runs(ids, env_mask)]
    return {
        "completion_text": tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens),
        "model_text": "\n".join(turns),
    }


def _rows(batch: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def as_lists(values: Any) -> list[Any]:
    """Rows that are tensors or arrays as lists; a column that is one as a list of its rows."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return [row.tolist() if hasattr(row, "tolist") else row for row in values]


def _warn_of_uncut(batch: Mapping[str, Sequence[Any]], parallel: list[str], max_total_length: int) -> None:
    """Say which columns look parallel but are not named, if a row is cut: they fall out of line."""
    lengths = [len(ids) for ids in batch["completion_ids"]]
    if not any(len(p) + n > max_total_length for p, n in zip(batch["prompt_ids"], lengths, strict=True)):
        return
    for name, rows in batch.items():
        if name in (*parallel, "prompt_ids") or not all(isinstance(row, list) for row in rows):
            continue
        if [len(row) for row in rows] == lengths and all(isinstance(x, (int, float)) for row in rows for x in row):
            warnings.warn(
                f"column {name} has a number per completion token but is not cut with them; add it to parallel_columns",
                stacklevel=3,
            )


def _present(batch: Mapping[str, Sequence[Any]], name: str) -> bool:
    return name in batch and any(values is not None for values in batch[name])


def _check(batch: Mapping[str, Sequence[Any]], parallel: list[str], max_total_length: int) -> None:
    """Raise on columns that cannot come from one rollout, naming row, column and lengths."""
    if not isinstance(max_total_length, Integral) or isinstance(max_total_length, bool) or max_total_length < 1:
        raise ValueError(f"max_total_length is {max_total_length}, expected a whole number of at least 1 token")
    missing = [name for name in REQUIRED_COLUMNS if name not in batch]
    if missing:
        raise ValueError(f"pack_rollouts misses the columns {missing}; found {sorted(batch)}")
    num_rows = len(batch["completion_ids"])
    for name, values in batch.items():
        if len(values) != num_rows:
            raise ValueError(f"column {name} has {len(values)} rows but completion_ids has {num_rows}")
    for index, ids in enumerate(batch["completion_ids"]):
        for name in ("prompt_ids", "completion_ids"):
            check_ids(index, name, batch[name][index])
        for name in parallel:
            values = batch[name][index]
            found = "nothing" if values is None else f"{len(values)} values"
            if values is None or len(values) != len(ids):
                raise ValueError(
                    f"row {index}: {name} has {found} but completion_ids has {len(ids)}; "
                    "both must come from the same rollout"
                )
        wrong = [value for value in batch["env_mask"][index] if value not in (0, 1)]
        if wrong:
            raise ValueError(f"row {index}: env_mask holds {wrong[0]!r}, expected only 0 (environment) and 1 (sampled)")


def check_ids(index: int, name: str, ids: Any) -> None:
    """Raise unless a row is a list of token ids.

    Example:
        check_ids(3, "completion_ids", [10, None])  # row 3: completion_ids holds None, expected only token ids, ...
    """
    if not isinstance(ids, (list, tuple)):
        raise ValueError(f"row {index}: {name} is {ids!r}, expected a list of token ids")
    if {*map(type, ids)} == {int} and min(ids) >= 0:  # as nearly always, and many times faster than one by one
        return
    for token_id in ids:
        if not isinstance(token_id, Integral) or isinstance(token_id, bool) or token_id < 0:
            raise ValueError(
                f"row {index}: {name} holds {token_id!r}, expected only token ids, which are whole numbers from 0 on"
            )
