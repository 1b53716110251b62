"""From trajectories to the rows that TRL trains on. Knows lists of ids and messages: no tensors, no model.

trajectory   ids  c c E | t t t | a E      sources  model x3, env x3, model x2
row          ids  c c E   t t t   a E      env_mask 1 1 1  0 0 0  1 1
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any

from ..trajectory import Source, Trajectory

REWARD_COLUMNS = ("trajectories", "completion_texts", "model_texts", "stop_reasons", "unfinished", "cut_observations")
EMPTY_TURN = {"role": "assistant", "content": ""}  # what a reward sees of a rollout in which nothing was sampled


def to_columns(trajectories: Sequence[Trajectory]) -> dict[str, list]:
    """The columns that `pack_rollouts` takes; `logprobs` only if every row has them."""
    columns: dict[str, list] = {
        "prompt_ids": [list(t.prompt_ids) for t in trajectories],
        "completion_ids": [list(t.completion_ids) for t in trajectories],
        "env_mask": [list(t.env_mask) for t in trajectories],
        "turn_index": [list(t.turn_index) for t in trajectories],
        "unfinished": [t.unfinished for t in trajectories],
    }
    logprobs = [t.logprobs if t.completion_ids else () for t in trajectories]
    if all(values is not None for values in logprobs):
        columns["logprobs"] = [list(values or ()) for values in logprobs]
    return columns


def trl_rows(
    columns: Mapping[str, list],
    trajectories: Sequence[Trajectory],
    prompts: Sequence[Any],
    *,
    filler_id: int,
    mask_env_tokens: bool,
) -> dict[str, Any]:
    """The aligned columns in the form that TRL's generation hook returns.

    A row without a completion gets one filler token under a 0: tensors need a token, the loss does not see it.

    Args:
        columns: output of `pack_rollouts` with its text columns, and of `left_out`: rows that get no trained token.
        mask_env_tokens: False adds ENV tokens (never TEMPLATE, never the prompt) to the loss.
    """
    masks = [
        [0] * len(env_mask) if no_loss else trained_sources(env_mask, trajectory, mask_env_tokens)
        for env_mask, trajectory, no_loss in zip(columns["env_mask"], trajectories, columns["no_loss"], strict=True)
    ]
    logprobs = columns.get("logprobs")
    foreign = 0.0 if mask_env_tokens else float("nan")  # a NaN says "the engine told none": TRL then corrects nothing
    return {
        "prompt_ids": columns["prompt_ids"],
        "completion_ids": [ids or [filler_id] for ids in columns["completion_ids"]],
        "env_mask": [mask or [0] for mask in masks],
        "logprobs": logprobs
        and [
            [value if own else foreign for value, own in zip(values, env_mask, strict=True)] or [foreign]
            for values, env_mask in zip(logprobs, columns["env_mask"], strict=True)
        ],
        "completions": [
            text if isinstance(prompt, str) else completion_messages(trajectory)
            for text, prompt, trajectory in zip(columns["completion_text"], prompts, trajectories, strict=True)
        ],
        "reward_columns": {
            "trajectories": list(trajectories),
            "completion_texts": columns["completion_text"],
            "model_texts": columns["model_text"],
            "stop_reasons": [trajectory.stop_reason for trajectory in trajectories],
            "unfinished": columns["unfinished"],
            "cut_observations": [trajectory.cut_observations for trajectory in trajectories],
        },
    }


def trained_sources(env_mask: list[int], trajectory: Trajectory, mask_env_tokens: bool) -> list[int]:
    if mask_env_tokens:
        return env_mask
    return [int(source is not Source.TEMPLATE) for source in trajectory.sources[: len(env_mask)]]


def completion_messages(trajectory: Trajectory) -> list[dict[str, Any]]:
    """A copy, for what a reward function does with it must not change the trajectory."""
    return deepcopy(list(trajectory.messages)) or [dict(EMPTY_TURN)]


def once_per_run(encode: Callable[[list], list], prompts: Sequence[Any]) -> list:
    """`encode(prompts)`, with each run of equal neighbours, as the members of a group are, encoded once."""
    runs = [(prompt, len(list(members))) for prompt, members in groupby(prompts)]
    encoded = encode([prompt for prompt, _ in runs])
    return [ids for ids, (_, count) in zip(encoded, runs, strict=True) for _ in range(count)]


def check_finite(rewards_per_func: Any, names: Sequence[str]) -> None:
    """Raise on an infinite reward, [N, F]: its group's advantages would be no numbers, and nothing of it trained."""
    infinite = rewards_per_func.isinf().nonzero().tolist()
    if infinite:
        row, function = infinite[0]
        raise ValueError(
            f"the reward function {names[function]!r} gave rollout {row} {rewards_per_func[row, function].item()}, "
            "expected a finite number, or None for a rollout that it does not apply to"
        )
