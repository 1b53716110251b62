"""How much each turn of a rollout earned, as advantages. Knows tensors of scores: no trainer, no tokens, no text.

    N rollouts, groups of G neighbours for one prompt, K turns at most; NaN where a rollout has no such turn

    scores            u[i, k]   weighted sum over the reward functions
    outcome           A[i]    = (R[i] - mean R) / (std R + 1e-4)                  GRPO: DeepSeekMath, arXiv 2402.03300
    turn              A[i, k] = (u[i, k] - mean u[:, k]) / (std u + 1e-4)         turn rewards: arXiv 2505.11821
    turn_discounted   the same of G[i, k] = u[i, k] + discount * G[i, k + 1]      normalised returns: arXiv 2511.14846
    gigpo             A[i, k] = A[i] + weight * (G[i, k] - mean G of the turns in its state) / (std G there + 1e-4)
                                                                                  GiGPO: arXiv 2505.10978

Where every turn of a rollout has its rollout's reward, `turn` is `outcome`, however many turns the rollouts have: each
rollout has one vote in every mean, and one that ended earlier stands in with the mean of its turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-4  # TRL's, beside a standard deviation


@dataclass(frozen=True, slots=True)
class Scaling:
    """How scores of several functions become one, and what they are divided by; TRL's options of the same names.

    Example:
        Scaling(weights=torch.tensor([1.0, 0.5]), group_size=8, scale_rewards="group")
    """

    weights: Tensor  # [F]
    group_size: int
    scale_rewards: str = "group"  # the deviation of the group, of the batch, or none
    aggregation: str = "sum_then_normalize"


def turn_advantages(values: Tensor, scaling: Scaling) -> Tensor:
    """Scores of turns minus the group's mean at that turn, scaled. [N, K, F] -> [N, K]; a turn without a score gets 0.

    Example (one group of two, one function, not scaled):
        turn_advantages([[[1], [0]], [[0], [0]]], ...)  # [[0.5, 0], [-0.5, 0]]
    """
    rows = values.size(0)
    if scaling.aggregation == "normalize_then_sum":
        each = [normalised(function, scaling.group_size, "group") for function in values.unbind(dim=2)]
        advantages = normalised(weighted_sum(torch.stack(each, dim=2), scaling.weights), rows, "group")
    else:
        advantages = normalised(weighted_sum(values, scaling.weights), scaling.group_size, scaling.scale_rewards)
    return advantages.nan_to_num(nan=0.0)


def step_advantages(returns: Tensor, states: Sequence[Sequence[str]], scaling: Scaling) -> Tensor:
    """Returns of turns minus the mean of all turns of the group that were taken in the same state. [N, K, F] -> [N, K].

    A turn whose state no other turn of the group was in has nothing to be compared with, and gets 0. A rollout that
    comes back to a state is in that state's mean once for each time.

    Args:
        returns: discounted sums of rewards from the turn on, see `discounted_returns`.
        states: of each rollout, what names the state before each turn; `scale_rewards="none"` divides by nothing.
    """
    total = weighted_sum(returns, scaling.weights)  # [N, K]
    places, group_of = [], []
    numbers: dict[tuple[int, str], int] = {}
    for row, names in enumerate(states):
        for turn, name in enumerate(names):
            if not total[row, turn].isnan():
                places.append((row, turn))
                group_of.append(numbers.setdefault((row // scaling.group_size, name), len(numbers)))
    advantages = torch.zeros_like(total)
    if not places:
        return advantages
    at, group = tuple(torch.tensor(places, device=total.device).unbind(dim=1)), total.new_tensor(group_of).long()
    found, zeros = total[at], total.new_zeros(len(numbers))
    count = zeros.index_add(0, group, torch.ones_like(found))
    apart = found - (zeros.index_add(0, group, found) / count)[group]
    if scaling.scale_rewards == "group":
        squares = zeros.index_add(0, group, apart.square())
        apart = apart / ((squares / (count - 1).clamp(min=1)).sqrt()[group] + EPSILON)
    elif scaling.scale_rewards == "batch":
        apart = apart / ((found - found.mean()).square().sum().div(max(len(found) - 1, 1)).sqrt() + EPSILON)
    advantages[at] = torch.where(count[group] > 1, apart, 0.0)
    return advantages


def discounted_returns(values: Tensor, discount: float) -> Tensor:
    """`G[k] = u[k] + discount * G[k + 1]` over the turns of each rollout. [N, K, F] -> [N, K, F].

    What the environment wrote between two turns is no turn: it neither discounts nor ends a return. Where there is no
    reward (NaN: no such turn, or a function that does not apply to the rollout) there is no return.

    Example (discount 0.5):
        [[0], [1], [nan]] -> [[0.5], [1], [nan]]
    """
    later = values.new_zeros(values.size(0), values.size(2))
    returns = torch.empty_like(values)
    for turn in reversed(range(values.size(1))):
        later = values[:, turn].nan_to_num(nan=0.0) + discount * later
        returns[:, turn] = later
    return torch.where(values.isnan(), torch.nan, returns)


def per_token(advantages: Tensor, turns: Sequence[Sequence[int]], width: int) -> Tensor:
    """The turn's advantage on each of its tokens, 0 on all others. [B, K] -> [B, C].

    Args:
        advantages: of this process's rows.
        turns: the turn of each completion token, -1 where the environment wrote it; cut as the row was cut.
        width: columns of the batch's completions.
    """
    numbers = torch.full((len(turns), width), -1, dtype=torch.long, device=advantages.device)
    for row, values in enumerate(turns):
        numbers[row, : len(values)] = torch.tensor(values, dtype=torch.long)
    return torch.where(numbers < 0, 0.0, advantages.gather(1, numbers.clamp(min=0)))


def normalised(values: Tensor, group_size: int, scale: str) -> Tensor:
    """[N, K] minus the mean of its group at each turn, over the deviation from it: of the group, the batch, or none."""
    apart, std = centred(values, group_size)
    if scale == "none":
        return apart
    if scale == "batch":
        _, std = centred(values, values.size(0))
    return apart / (std + EPSILON)


def centred(values: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """[N, K] minus the mean of the group's rollouts at each turn, and the sample deviation from it, [N, 1].

    Each rollout has one vote: in the mean at a turn it does not have, with the mean of its turns; in the variance, with
    the mean over its turns. A rollout without any score has none.
    """
    groups = values.view(-1, group_size, values.size(1))
    own = groups.nanmean(dim=2, keepdim=True)  # [groups, G, 1]
    apart = groups - torch.where(groups.isnan(), own, groups).nanmean(dim=1, keepdim=True)
    votes = apart.square().nanmean(dim=2)  # [groups, G]
    count = (~votes.isnan()).sum(dim=1, keepdim=True)
    std = (votes.nansum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()  # [groups, 1]
    return apart.view_as(values), std.repeat_interleave(group_size, dim=0)


def weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """[N, K, F] -> [N, K]: a function that gave no score counts nothing; NaN where none gave one."""
    return torch.where(values.isnan().all(dim=2), torch.nan, (values * weights).nansum(dim=2))
