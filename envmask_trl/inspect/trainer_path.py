"""The path under audit: what a trainer does with a micro-batch. Knows a trainer by its public names; judges nothing."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..trajectory import Source
from .audited_rows import AuditedRow
from .independent_loss import Objective, Step
from .row_proof import Ids

Batch = dict[str, Any]
CONSTANTS = {
    "old_logprobs": "old_per_token_logps",
    "ref_logprobs": "ref_per_token_logps",
    "sampling_ratio": "importance_sampling_ratio",
}
SILENT = 1e-6  # an advantage below shows nothing of the mask; the audit puts 1 in its place


def trainer_step(trainer: Any, batch: Batch, rows: list[AuditedRow]) -> Step:
    """Loss and gradient as the trainer computes them; its `.grad`, metrics and entropy control stay as they are."""
    parameters = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    with trainer.logprobs_kept() as kept:
        loss = trainer.compute_loss(trainer.model, dict(batch))
    weights, *gradient = torch.autograd.grad(loss, [kept[0], *parameters], allow_unused=True, materialize_grads=True)
    lengths = [len(row.completion_ids) for row in rows]
    return Step(gradient, loss.item(), cut(kept[0].detach(), lengths), cut(weights, lengths))


def trainer_logprobs(trainer: Any, batch: Batch, rows: list[AuditedRow]) -> list[Tensor]:
    """The log-probs that the trainer's loss would use, of each row: [C]; 0 where it scores nothing."""
    with torch.no_grad(), trainer.logprobs_kept() as kept:
        trainer.compute_loss(trainer.model, dict(batch))
    return cut(kept[0], [len(row.completion_ids) for row in rows])


def cut(values: Tensor, lengths: list[int]) -> list[Tensor]:
    """The rows of [B, C] without their padding on the right."""
    return [row[:length] for row, length in zip(values, lengths, strict=True)]


def objective_of(trainer: Any) -> Objective:
    """The trainer's loss and its constants; ValueError for a loss type that the audit cannot state."""
    args = trainer.args
    return Objective(
        loss_type=trainer.loss_type,
        importance_sampling_level=trainer.importance_sampling_level,
        beta=trainer.beta,
        use_bias_correction_kl=args.use_bias_correction_kl,
        epsilon_low=trainer.epsilon_low,
        epsilon_high=trainer.epsilon_high,
        delta=args.delta,
        temperature=trainer.temperature,
        max_completion_length=args.max_completion_length,
        sapo_temperatures=(args.sapo_temperature_pos, args.sapo_temperature_neg),
        vespo_gammas=((args.vespo_k_pos, args.vespo_lambda_pos), (args.vespo_k_neg, args.vespo_lambda_neg)),
    )


def not_stated(trainer: Any) -> list[str]:
    """The trainer's options whose part of the loss `independent_loss` does not state."""
    used = {
        "top_entropy_quantile": trainer.top_entropy_quantile < 1.0,
        "off_policy_mask_threshold": trainer.off_policy_mask_threshold is not None,
        "entropy_coef": trainer.entropy_coef != 0.0 or trainer.use_adaptive_entropy,
        "router_aux_loss_coef": trainer.aux_loss_enabled,
    }
    return [name for name, is_used in used.items() if is_used]


def tolerance(trainer: Any) -> float:
    """The square root of the precision in which the model computes: 3e-4 in float32, 0.09 in bfloat16."""
    precision = trainer.accelerator.mixed_precision
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, trainer.model.dtype)
    return torch.finfo(dtype).eps ** 0.5


def batch_ids(batch: Batch) -> list[Ids]:
    """Prompt and completion of each row, without padding, which only the masks over it tell."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    return [
        (tuple(prompt[keep.bool()].tolist()), tuple(completion[kept.bool()].tolist()))
        for prompt, keep, completion, kept in zip(*(batch[name] for name in names), strict=True)
    ]


def batch_advantages(batch: Batch) -> list[float | None]:
    """The advantage of each row, None where it has one per token."""
    advantages = batch["advantages"]
    return advantages.tolist() if advantages.dim() == 1 else [None] * len(advantages)


def rows_of_rollout_func(batch: Batch) -> list[AuditedRow]:
    """Rows whose authors are known only from the mask that a rollout function returned."""
    masks = (batch["tool_mask"] if "tool_mask" in batch else batch["completion_mask"]).tolist()
    rows = []
    for (prompt, completion), mask, advantage in zip(batch_ids(batch), masks, batch_advantages(batch), strict=True):
        trained = tuple(mask[: len(completion)])
        sources = tuple(Source.MODEL if own else Source.ENV for own in trained)
        rows.append(AuditedRow(prompt, completion, sources, trained, (advantage or 0.0,)))
    return rows


def with_constants(row: AuditedRow, batch: Batch, index: int) -> AuditedRow:
    """The row with what the batch has for it besides ids and masks."""
    length, advantages = len(row.completion_ids), batch["advantages"]
    found = {name: batch[column][index][:length] for name, column in CONSTANTS.items() if column in batch}
    per_token = tuple(advantages[index, :length].tolist()) if advantages.dim() == 2 else row.advantages
    return replace(row, advantages=per_token, **found)


def made_loud(batch: Batch, rows: list[AuditedRow]) -> tuple[Batch, list[AuditedRow]]:
    """Batch and rows with an advantage of 1 wherever the batch has about 0, which would show nothing of the mask."""
    advantages = batch["advantages"]
    silent = advantages.abs() < SILENT
    per_row = silent.tolist() if silent.dim() == 2 else [[value] for value in silent.tolist()]
    loud = [
        replace(row, advantages=tuple(1.0 if s else a for a, s in zip(row.advantages, silences, strict=False)))
        for row, silences in zip(rows, per_row, strict=True)
    ]
    return {**batch, "advantages": torch.where(silent, torch.ones_like(advantages), advantages)}, loud


def with_ids(batch: Batch, changed: Iterable[tuple[int, AuditedRow]]) -> Batch:
    """The batch in which some rows have other completion tokens, as many as before."""
    completion_ids = batch["completion_ids"].clone()
    for index, row in changed:
        completion_ids[index, : len(row.completion_ids)] = completion_ids.new_tensor(row.completion_ids)
    return {**batch, "completion_ids": completion_ids}
