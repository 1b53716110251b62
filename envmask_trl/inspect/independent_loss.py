"""What GRPO with an environment mask is, as short as it can be said. Knows one row at a time: no trainer, no batch.

The audit holds the trainer against this file. A row is forwarded alone, so there is no padding, no packing and no
neighbour that could be wrong; the mask is explicit; nothing here is shared with the trainer's path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .audited_rows import AuditedRow

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")
Mask = Sequence[int]  # [C], 1 keeps the token in the loss


@dataclass(frozen=True, slots=True)
class Objective:
    """Which loss, and its constants, under TRL's names and with TRL's meaning.

    Example:
        Objective("grpo", beta=0.04)

    Raises:
        ValueError: a loss type that this file does not state.
    """

    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    temperature: float = 1.0
    max_completion_length: int = 256
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)  # for advantages above 0, and others
    vespo_gammas: tuple[tuple[float, float], tuple[float, float]] = (
        (2.0, 3.0),
        (3.0, 2.0),
    )  # (k, lambda) from 0; below

    def __post_init__(self) -> None:
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(f"loss_type is {self.loss_type!r}, but the audit can state only {', '.join(LOSS_TYPES)}")


@dataclass(frozen=True, slots=True)
class Counts:
    """What the loss of a micro-batch is divided by.

    Example:
        Counts(rows=4, tokens=90, voting_rows=15, step_tokens=400, micro_batches=4, accumulation=4)
    """

    rows: int  # of the micro-batch
    tokens: int  # trained ones of the micro-batch
    voting_rows: float  # rows with a trained token in the optimizer step, per process
    step_tokens: float  # trained tokens of the optimizer step, per process
    micro_batches: int = 1  # of the optimizer step that one generation holds
    accumulation: int = 1  # micro-batches of the optimizer step

    @classmethod
    def of(cls, masks: Sequence[Mask]) -> "Counts":
        """The counts of a micro-batch that is a step of its own."""
        tokens, voting = sum(map(sum, masks)), sum(map(any, masks))
        return cls(len(masks), tokens, voting, tokens)


def row_logprobs(model: Any, row: AuditedRow, objective: Objective) -> Tensor:
    """log p(token | everything before it) of each completion token, observations included: [C]."""
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]], device=model.device)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    start = len(row.prompt_ids)
    logprobs = (logits[start - 1 : -1].float() / objective.temperature).log_softmax(dim=-1)
    return logprobs.gather(1, ids[0, start:, None]).squeeze(1)


def token_losses(logprobs: Tensor, row: AuditedRow, mask: Mask, objective: Objective) -> Tensor:
    """The loss of each token of a row, 0 where `mask` is 0: [C].

    Where the row has no old or reference log-prob, because the trainer does not train the token, it is the policy's.
    """
    keep = torch.tensor(mask, device=logprobs.device).bool()
    known = torch.tensor(row.trained, device=logprobs.device).bool()
    own, advantages = logprobs.detach(), logprobs.new_tensor(row.advantages)
    old = own if row.old_logprobs is None else torch.where(known, row.old_logprobs, own)
    log_ratio = torch.where(keep, logprobs - old, 0.0)
    by_token = objective.importance_sampling_level == "token"
    ratio = (log_ratio if by_token else log_ratio.sum() / keep.sum().clamp(min=1)).exp()
    losses = -surrogate(ratio, log_ratio, logprobs, advantages, row, objective)
    if row.sampling_ratio is not None and objective.loss_type != "vespo":
        losses = losses * row.sampling_ratio
    if objective.beta:
        assert row.ref_logprobs is not None
        apart = torch.where(known, row.ref_logprobs, own) - logprobs
        kl = apart.exp() - apart - 1
        losses = losses + objective.beta * (kl * ratio if objective.use_bias_correction_kl else kl)
    return torch.where(keep, losses, 0.0)


def surrogate(
    ratio: Tensor, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, row: AuditedRow, objective: Objective
) -> Tensor:
    """What is maximised, per token, before masks and denominators."""
    if objective.loss_type == "cispo":
        return ratio.clamp(max=objective.epsilon_high).detach() * advantages * logprobs
    if objective.loss_type == "sapo":
        above, below = objective.sapo_temperatures
        temperature = torch.where(advantages > 0, above, below)
        return (temperature * (ratio - 1)).sigmoid() * 4 / temperature * advantages
    if objective.loss_type == "vespo":
        return vespo_weight(log_ratio.detach(), advantages, row, objective) * advantages * logprobs
    clipped = ratio.clamp(1 - objective.epsilon_low, 1 + objective.epsilon_high)
    return torch.minimum(ratio.clamp(max=objective.delta or torch.inf) * advantages, clipped * advantages)


def vespo_weight(log_ratio: Tensor, advantages: Tensor, row: AuditedRow, objective: Objective) -> Tensor:
    """w^k exp(lambda (1 - w)), where w is the ratio of the whole sequence."""
    lowest = -18.420681  # ln 1e-8
    log_w = log_ratio.clamp(-20, 20).sum()
    if row.sampling_ratio is not None:
        log_w = log_w + row.sampling_ratio.log().clamp(lowest, 20).sum()
    log_w = log_w.clamp(lowest, 20)
    (k_from_0, lambda_from_0), (k_below, lambda_below) = objective.vespo_gammas
    k = torch.where(advantages >= 0, k_from_0, k_below)
    lam = torch.where(advantages >= 0, lambda_from_0, lambda_below).clamp(min=1e-4)
    return (lam + k * log_w - lam * log_w.exp()).exp()


def divisor(mask: Mask, counts: Counts, objective: Objective) -> float:
    """What the token losses of one row are divided by, so that their sum over rows is the loss of the micro-batch."""
    by_loss_type = {
        "grpo": sum(mask) * counts.voting_rows,
        "sapo": sum(mask) * counts.voting_rows,
        "luspo": counts.voting_rows,
        "bnpo": counts.tokens * counts.micro_batches,
        "dr_grpo": counts.rows * objective.max_completion_length * counts.micro_batches,
    }
    whole = by_loss_type.get(objective.loss_type, counts.step_tokens)
    return max(whole, 1) * counts.accumulation / counts.micro_batches


@dataclass(slots=True)
class Step:
    """Loss and gradient of a micro-batch, row by row.

    Example:
        Step(loss=-0.25, gradient=[...], logprobs=[tensor([-1.2, -0.3])], weights=[tensor([-0.5, 0.0])], losses=[...])
    """

    gradient: list[Tensor]  # one per parameter
    loss: float = 0.0
    logprobs: list[Tensor] = field(default_factory=list)  # of each row, [C]
    weights: list[Tensor] = field(default_factory=list)  # d loss / d logprobs of each row, [C]
    losses: list[Tensor] = field(default_factory=list)  # of each row's tokens, divided as in the loss, [C]


def independent_step(
    model: Any, rows: Sequence[AuditedRow], masks: Sequence[Mask], counts: Counts, objective: Objective
) -> Step:
    """Loss and gradient of `rows` under `masks`; the model's own `.grad` stays as it is."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    step = Step([torch.zeros_like(parameter) for parameter in parameters])
    for row, mask in zip(rows, masks, strict=True):
        logprobs = row_logprobs(model, row, objective)
        losses = token_losses(logprobs, row, mask, objective) / divisor(mask, counts, objective)
        weights, *gradient = torch.autograd.grad(
            losses.sum(), [logprobs, *parameters], allow_unused=True, materialize_grads=True
        )
        for total, part in zip(step.gradient, gradient, strict=True):
            total += part
        step.loss += losses.sum().item()
        step.logprobs.append(logprobs.detach())
        step.weights.append(weights)
        step.losses.append(losses.detach())
    return step


def weighted_gradient(
    model: Any, rows: Sequence[AuditedRow], weights: Sequence[Tensor], objective: Objective
) -> list[Tensor]:
    """sum of weight x d log-prob / d parameters: what tokens of these weights contribute to the gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for row, weight in zip(rows, weights, strict=True):
        if not weight.any():
            continue  # 0 x d log-prob
        logprobs = row_logprobs(model, row, objective)
        parts = torch.autograd.grad((weight * logprobs).sum(), parameters, allow_unused=True, materialize_grads=True)
        for whole, part in zip(total, parts, strict=True):
            whole += part
    return total
