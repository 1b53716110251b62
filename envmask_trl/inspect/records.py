"""Rollouts as parquet. One row per rollout, ids and their authors side by side; readable with any parquet reader."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..trajectory import Trajectory


def rollout_columns(
    trajectories: Sequence[Trajectory],
    *,
    rewards: Sequence[Mapping[str, float]] | None = None,
    advantages: Sequence[Any] | None = None,
) -> dict[str, list]:
    """Columns of plain values: ids, `sources` (author per completion token), env_mask, turn_index, logprobs, messages
    and tool results as JSON, stop_reason, error, and if given `rewards` (JSON by function) and `advantage`."""
    columns: dict[str, list] = {
        "prompt_ids": [list(t.prompt_ids) for t in trajectories],
        "completion_ids": [list(t.completion_ids) for t in trajectories],
        "sources": [[str(source) for source in t.sources] for t in trajectories],
        "env_mask": [list(t.env_mask) for t in trajectories],
        "turn_index": [list(t.turn_index) for t in trajectories],
        "logprobs": [None if t.logprobs is None else list(t.logprobs) for t in trajectories],
        "prompt": [json.dumps(t.prompt, ensure_ascii=False, default=str) for t in trajectories],
        "messages": [json.dumps(t.messages, ensure_ascii=False, default=str) for t in trajectories],
        "tool_results": [json.dumps([_result(r) for r in t.tool_results], ensure_ascii=False) for t in trajectories],
        "stop_reason": [str(t.stop_reason) for t in trajectories],
        "unfinished": [t.unfinished for t in trajectories],
        "error": [t.error for t in trajectories],
    }
    if rewards is not None:
        columns["rewards"] = [json.dumps(dict(row)) for row in rewards]
    if advantages is not None:
        columns["advantage"] = list(advantages)
    return columns


def save_rollouts(rollouts: Sequence[Trajectory] | Mapping[str, list], path: str | os.PathLike) -> Path:
    """Write trajectories, or columns from `rollout_columns`, to one parquet file; a half-written file is never left.

    Example:
        save_rollouts(trajectories, "rollouts/step-000001.parquet")
    """
    import pyarrow
    from pyarrow import parquet

    columns = rollouts if isinstance(rollouts, Mapping) else rollout_columns(rollouts)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    parquet.write_table(pyarrow.table(dict(columns)), partial)
    return partial.replace(path)


def load_rollouts(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows of a parquet file, or of all of them in a folder, in order of file name; JSON columns are decoded.

    Raises:
        FileNotFoundError: there is no such file, or no parquet file in the folder.
        ValueError: a file is damaged, or no parquet file, or a JSON column has a text that is no JSON.
    """
    path = Path(path)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{path} has no parquet files; expected those that the trainer writes to `rollouts/`")
    rows = [row for file in files for row in rows_of(file)]
    for number, row in enumerate(rows):
        for name in ("prompt", "messages", "tool_results", "rewards"):
            if isinstance(row.get(name), str):
                row[name] = from_json(number, name, row[name])
    return rows


def from_json(number: int, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        expected = "expected JSON, as `save_rollouts` writes it"
        raise ValueError(f"row {number}: {name} is {text[:40]!r}, which is no JSON ({error}); {expected}") from error


def rows_of(file: Path) -> list[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(file).to_pylist()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{file} does not exist; expected a parquet file, or a folder of them, as the trainer writes to `rollouts/`"
        ) from error
    except (pyarrow.ArrowException, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{file} cannot be read as parquet ({reason}); it is damaged or of another kind: copy it again, or move it "
            "out of the folder, and the other files can be read"
        ) from error


def _result(result: Any) -> dict[str, Any]:
    return {
        "call_id": result.call_id,
        "name": result.name,
        "content": result.content,
        "status": str(result.status),
        "latency_s": result.latency_s,
    }
