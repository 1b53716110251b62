"""Do prompt, completion, reward and advantage of each row belong together? Knows ids and numbers: no trainer."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .audit_report import Check
from .audited_rows import AuditedRow

TOGETHER = "prompt, completion, reward and advantage of each row belong together"
CLOSE = 1e-4  # of an advantage, which has a scale of about 1

Ids = tuple[tuple[int, ...], tuple[int, ...]]  # of prompt and completion


def group_advantages(
    rewards: Tensor, weights: Tensor, *, num_generations: int, scale_rewards: str, aggregation: str
) -> Tensor:
    """Rewards minus their group's mean, scaled as TRL's options say; NaN is "not scored" and gets 0. [N, F] -> [N]."""
    if aggregation == "normalize_then_sum":
        groups = rewards.view(-1, num_generations, rewards.size(1))
        scaled = (groups - groups.nanmean(dim=1, keepdim=True)) / (spread(groups, 1) + 1e-4)
        sums = weighted_sum(scaled.view_as(rewards), weights)
        return ((sums - sums.nanmean()) / (spread(sums, 0) + 1e-4)).nan_to_num(nan=0.0)
    sums = weighted_sum(rewards, weights)
    groups = sums.view(-1, num_generations)
    advantages = groups - groups.nanmean(dim=1, keepdim=True)
    if scale_rewards != "none":
        advantages = advantages / ((spread(groups, 1) if scale_rewards == "group" else spread(sums, 0)) + 1e-4)
    return advantages.flatten().nan_to_num(nan=0.0)


def weighted_sum(rewards: Tensor, weights: Tensor) -> Tensor:
    """[N, F] -> [N]; NaN where no function scored the row."""
    return torch.where(rewards.isnan().all(dim=1), torch.nan, (rewards * weights).nansum(dim=1))


def spread(values: Tensor, dim: int) -> Tensor:
    """Sample standard deviation of what is not NaN, with `dim` kept."""
    apart = values - values.nanmean(dim=dim, keepdim=True)
    known = (~values.isnan()).sum(dim=dim, keepdim=True)
    return (apart.square().nansum(dim=dim, keepdim=True) / (known - 1).clamp(min=1)).sqrt()


def match_rows(
    found: Sequence[Ids], advantages: Sequence[float | None], rows: Sequence[AuditedRow]
) -> list[int | None]:
    """Which rollout each row of the micro-batches is, None where no rollout has its prompt and completion.

    Of rollouts with the same ids, which only their advantages tell apart, the one with the nearest advantage.
    """
    free: dict[Ids, list[int]] = {}
    for index, row in enumerate(rows):
        free.setdefault(row.ids, []).append(index)
    matches: list[int | None] = []
    for ids, advantage in zip(found, advantages, strict=True):
        candidates = free.get(ids, [])
        if not candidates:
            matches.append(None)
            continue
        wanted = advantage or 0.0
        best = min(candidates, key=lambda index: abs(rows[index].advantages[0] - wanted))
        candidates.remove(best)
        matches.append(best)
    return matches


def check_together(
    matches: Sequence[int | None],
    advantages: Sequence[float | None],
    rows: Sequence[AuditedRow],
    found_before: str = "",
) -> Check:
    """The rows of all micro-batches are the rollouts, each once and with its own advantage (None: one per token)."""
    if found_before:
        return Check(TOGETHER, False, found_before)
    strange = [number for number, match in enumerate(matches) if match is None]
    if strange or len(matches) != len(rows):
        return Check(
            TOGETHER,
            False,
            f"{len(matches)} rows are trained for {len(rows)} rollouts, and {len(strange)} of them have a prompt and a "
            f"completion that no rollout has together; the first is row {strange[0] if strange else len(matches)}",
        )
    for number, (match, advantage) in enumerate(zip(matches, advantages, strict=True)):
        assert match is not None
        expected = rows[match].advantages[0]
        if advantage is not None and not abs(advantage - expected) <= CLOSE * max(1.0, abs(expected)):
            return Check(
                TOGETHER,
                False,
                f"row {number} of the micro-batches is rollout {match} by its ids; its reward makes an advantage of "
                f"{expected:.4g}, but it is trained with {advantage:.4g}",
            )
    per_token = "" if None not in advantages else "; advantages are per token and were not computed again"
    return Check(TOGETHER, True, f"{len(rows)} rows followed from sampling to the micro-batches{per_token}")


def check_saved_together(saved: Sequence[Mapping[str, Any]]) -> Check:
    """In a group, does a higher reward go with a higher advantage? Needs one reward function, and the groups saved."""
    groups: dict[tuple[Any, int], list[tuple[float, float]]] = {}
    for row in (row for row in saved if any(row.get("loss_mask") or row["env_mask"])):
        if missing := what_is_missing(row):
            return Check(TOGETHER, None, f"{missing}; train with audit_first_step=True, which follows them")
        (reward,) = row["rewards"].values()
        groups.setdefault((row.get("step"), row["group"]), []).append((reward, row["advantage"]))
    for (step, _), members in groups.items():
        for (reward, advantage), (other, other_advantage) in combinations(members, 2):
            apart = advantage - other_advantage
            if (reward - other) * apart < 0 or (reward == other and abs(apart) > CLOSE):
                return Check(
                    TOGETHER,
                    False,
                    f"in step {step} two rollouts of one group have rewards {reward:.4g} and {other:.4g} "
                    f"but advantages {advantage:.4g} and {other_advantage:.4g}",
                )
    return Check(TOGETHER, True, f"advantages follow the rewards in each of {len(groups)} groups")


def what_is_missing(row: Mapping[str, Any]) -> str:
    """Why a saved row's advantage cannot be compared with its reward; "" if it can."""
    rewards = row.get("rewards") or {}
    if len(rewards) > 1:
        return f"a file has no weights for the rewards of its {len(rewards)} functions ({', '.join(rewards)})"
    if not rewards or None in rewards.values():
        return "not every rollout was saved with a reward"
    if not isinstance(row.get("advantage"), float):
        return "not every rollout was saved with one advantage (with credit by turn each token has its own)"
    return "not every rollout was saved with the number of its group" if row.get("group") is None else ""
