"""What is logged about a generation batch. Knows trajectories and sums: no model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ..trajectory import CallStatus, StopReason, Trajectory

if TYPE_CHECKING:
    from ._trl import HookedGRPOTrainer


def log_rollout_metrics(
    trainer: "HookedGRPOTrainer", trajectories: Sequence[Trajectory], columns: Mapping[str, list]
) -> None:
    """Log over all processes: TRL's own completion and tool metrics, and those of the mask under `env_mask/`."""
    device = trainer.accelerator.device
    lengths = torch.tensor([sum(mask) for mask in columns["env_mask"]], device=device)
    unfinished = torch.tensor(columns["unfinished"], device=device)
    lengths, unfinished = trainer.accelerator.gather(lengths), trainer.accelerator.gather(unfinished)
    finished_lengths = lengths[~unfinished] if (~unfinished).any() else lengths.new_zeros(1)
    for name, values in (("", lengths), ("terminated_", finished_lengths)):
        trainer.log_value(f"completions/mean_{name}length", values.float().mean().item())
        trainer.log_value(f"completions/min_{name}length", values.min().item())
        trainer.log_value(f"completions/max_{name}length", values.max().item())
    trainer.log_value("completions/clipped_ratio", unfinished.float().mean().item())
    totals = count(trajectories, columns)
    summed = trainer.sum_over_processes(torch.tensor(list(totals.values()), dtype=torch.float64, device=device))
    totals = dict(zip(totals, summed.tolist(), strict=True))
    if trainer.model.training:
        trainer.state.num_input_tokens_seen += int(totals["prompt_tokens"] + totals["trained_tokens"])
    trainer.log_value("num_tokens", trainer.state.num_input_tokens_seen)
    for name, value in shares(totals).items():
        trainer.log_value(name, value)


def count(trajectories: Sequence[Trajectory], columns: Mapping[str, list]) -> dict[str, float]:
    """Sums over the rows of this process, under the same names on every process."""
    results = [result for trajectory in trajectories for result in trajectory.tool_results]
    statuses = {f"status/{status}": sum(r.status is status for r in results) for status in CallStatus}
    reasons = {f"stop/{reason}": sum(t.stop_reason is reason for t in trajectories) for reason in StopReason}
    return {
        "rows": len(trajectories),
        "prompt_tokens": sum(map(len, columns["prompt_ids"])),
        "completion_tokens": sum(map(len, columns["completion_ids"])),
        "trained_tokens": sum(map(sum, columns["env_mask"])),
        "turns": sum(t.num_turns for t in trajectories),
        "calls": len(results),
        "latency_s": sum(result.latency_s for result in results),
        "cut_observations": sum(t.cut_observations for t in trajectories),
        "control_tokens": sum(t.control_tokens for t in trajectories),
        "drift": sum(len(t.drift) for t in trajectories),
        **statuses,
        **reasons,
    }


def shares(totals: Mapping[str, float]) -> dict[str, float]:
    """The logged values, from sums over all processes."""
    rows, calls = totals["rows"], totals["calls"]
    never_run = ("unknown_tool", "bad_arguments", "malformed")
    return {
        "env_mask/env_token_share": 1 - totals["trained_tokens"] / max(totals["completion_tokens"], 1),
        "env_mask/turns": totals["turns"] / rows,
        "env_mask/cut_observations": totals["cut_observations"] / rows,
        "env_mask/control_tokens": totals["control_tokens"] / rows,
        "env_mask/drift": totals["drift"] / rows,
        **{f"env_mask/stop/{reason}": totals[f"stop/{reason}"] / rows for reason in StopReason},
        "tools/call_frequency": calls / rows,
        "tools/failure_frequency": (calls - totals["status/ok"]) / max(calls, 1),
        "tools/mean_latency_s": totals["latency_s"] / max(calls, 1),
        **{f"tools/{status}_frequency": totals[f"status/{status}"] / max(calls, 1) for status in never_run},
        "tools/timeout_frequency": totals["status/timeout"] / max(calls, 1),
    }
