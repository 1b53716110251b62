"""What is logged about a generation batch. Knows the facts of its rollouts: no trajectories, no tokens, no model.

    env_mask/    env_token_share, turns, cut_observations, control_tokens, drift, plays_environment_share, stop/<reason>
    tools/       call_frequency, failure_frequency, latency_p50_s, latency_p95_s, malformed_frequency, ...
    tools/<name>/    call_frequency, failure_frequency, latency_p50_s, latency_p95_s

What has no value has no entry: a tool that was not called has a call_frequency of 0, no failures and no latency.
"""

from collections.abc import Collection, Sequence

import numpy as np

from ..rollout.drift import DriftKind
from ..trajectory import CallStatus, StopReason
from .row_facts import CallFacts, RowFacts

NOT_A_TOOL = (CallStatus.UNKNOWN_TOOL, CallStatus.MALFORMED)  # such a call has no tool that it could be counted for


def length_metrics(facts: Sequence[RowFacts]) -> dict[str, float]:
    """TRL's metrics of completions, in sampled tokens; a rollout counts as clipped if it was ended from outside."""
    lengths = [row.sampled_tokens for row in facts]
    finished = [row.sampled_tokens for row in facts if not row.unfinished] or [0]
    return {
        "completions/mean_length": float(np.mean(lengths)),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/mean_terminated_length": float(np.mean(finished)),
        "completions/min_terminated_length": min(finished),
        "completions/max_terminated_length": max(finished),
        "completions/clipped_ratio": sum(row.unfinished for row in facts) / len(facts),
    }


def mask_metrics(facts: Sequence[RowFacts], *, drift_kinds: Collection[DriftKind] = ()) -> dict[str, float]:
    """Means per rollout, and shares of all tokens or rollouts.

    Args:
        drift_kinds: kinds of `Trajectory.drift` that are logged one by one, besides their sum.
    """
    rows = len(facts)
    sampled, tokens = sum(row.sampled_tokens for row in facts), sum(row.completion_tokens for row in facts)
    return {
        "env_mask/env_token_share": 1 - sampled / max(tokens, 1),
        "env_mask/turns": sum(row.turns for row in facts) / rows,
        "env_mask/cut_observations": sum(row.cut_observations for row in facts) / rows,
        "env_mask/control_tokens": sum(row.control_tokens for row in facts) / rows,
        "env_mask/plays_environment_share": sum(row.plays_environment for row in facts) / rows,
        "env_mask/drift": sum(len(row.drift) for row in facts) / rows,
        **{f"env_mask/drift/{kind}": sum(row.drift.count(kind) for row in facts) / rows for kind in drift_kinds},
        **{f"env_mask/stop/{reason}": sum(row.stop_reason is reason for row in facts) / rows for reason in StopReason},
    }


def tool_metrics(facts: Sequence[RowFacts], *, tool_names: Collection[str]) -> dict[str, float]:
    """Calls per rollout, shares of calls, and seconds, of all calls and of each tool."""
    calls = [call for row in facts for call in row.calls]
    by_tool: dict[str, list[CallFacts]] = {name: [] for name in sorted(tool_names)}
    for call in calls:
        if call.status not in NOT_A_TOOL:
            by_tool.setdefault(call.name, []).append(call)
    metrics = call_metrics("tools", calls, len(facts))
    for status in (*NOT_A_TOOL, CallStatus.BAD_ARGUMENTS, CallStatus.TIMEOUT):
        metrics[f"tools/{status}_frequency"] = sum(call.status is status for call in calls) / max(len(calls), 1)
    metrics.setdefault("tools/failure_frequency", 0.0)  # TRL logs one in any case
    for name, own in by_tool.items():
        metrics |= call_metrics(f"tools/{name}", own, len(facts))
    return metrics


def call_metrics(prefix: str, calls: Sequence[CallFacts], rows: int) -> dict[str, float]:
    """Of some calls; latencies are those of calls that were run, given up ones included."""
    metrics = {f"{prefix}/call_frequency": len(calls) / rows}
    if calls:
        failures = sum(call.status is not CallStatus.OK for call in calls)
        metrics[f"{prefix}/failure_frequency"] = failures / len(calls)
    latencies_s = [call.latency_s for call in calls if call.latency_s > 0]
    if latencies_s:
        for percent in (50, 95):
            metrics[f"{prefix}/latency_p{percent}_s"] = float(np.percentile(latencies_s, percent))
    return metrics
