"""The same batch and weights with the mask and without it. Knows rows and gradients: no trainer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .audited_rows import AuditedRow
from .independent_loss import Counts, Objective, independent_step, weighted_gradient


@dataclass(frozen=True, slots=True)
class PairedReport:
    """What the environment's tokens would have in a loss without a mask, in which every completion token is trained.

    Example:
        PairedReport(tokens=0.58, loss=0.55, gradient=0.41, norm_with_mask=1.2, norm_without_mask=2.3, cosine=0.71)
    """

    tokens: float  # their share of the completion's tokens
    loss: float  # their share of the sum of |loss of a token|
    gradient: float  # norm of their part of the gradient / norm of the whole gradient, both without the mask
    norm_with_mask: float
    norm_without_mask: float
    cosine: float  # between the gradient with and the one without the mask

    def __str__(self) -> str:
        return (
            f"without the mask, what the model did not write would be {self.tokens:.1%} of the tokens and "
            f"{self.loss:.1%} of the loss, and its part of the gradient {self.gradient:.1%} as long as the whole; "
            f"gradient norm {self.norm_with_mask:.4g} with the mask, {self.norm_without_mask:.4g} without it, "
            f"cosine between the two {self.cosine:.3f}"
        )


def paired_report(model: Any, rows: Sequence[AuditedRow], objective: Objective) -> PairedReport:
    """The micro-batch `rows` as a step of its own, with its masks and with none; nothing of the model changes.

    Rows without a trained token, which a policy leaves out of the loss, are left out of both.
    """
    rows = [row for row in rows if any(row.trained)]
    with_mask = [row.trained for row in rows]
    without = [[1] * len(row.completion_ids) for row in rows]
    on = independent_step(model, rows, with_mask, Counts.of(with_mask), objective)
    off = independent_step(model, rows, without, Counts.of(without), objective)
    foreign = [weight.new_tensor(row.foreign) for weight, row in zip(off.weights, rows, strict=True)]
    parts = [weight * keep for weight, keep in zip(off.weights, foreign, strict=True)]
    part = weighted_gradient(model, rows, parts, objective)
    of_all = sum(losses.abs().sum().item() for losses in off.losses)
    of_foreign = sum((losses.abs() * keep).sum().item() for losses, keep in zip(off.losses, foreign, strict=True))
    return PairedReport(
        tokens=share(sum(sum(row.foreign) for row in rows), sum(map(len, without))),
        loss=share(of_foreign, of_all),
        gradient=share(norm(part), norm(off.gradient)),
        norm_with_mask=norm(on.gradient),
        norm_without_mask=norm(off.gradient),
        cosine=cosine(on.gradient, off.gradient),
    )


def with_signal(rows: Sequence[AuditedRow]) -> tuple[list[AuditedRow], bool]:
    """The rows, and whether they had an advantage; where none has one, each gets 1, for 0 would show nothing."""
    if any(any(row.advantages) for row in rows):
        return list(rows), True
    return [replace(row, advantages=(1.0,)) for row in rows], False


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return sum(torch.dot(a.flatten().double(), b.flatten().double()).item() for a, b in zip(left, right, strict=True))


def norm(gradient: Sequence[Tensor]) -> float:
    return dot(gradient, gradient) ** 0.5


def cosine(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return share(dot(left, right), norm(left) * norm(right))


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """|found - expected| / |expected|; infinite where something was found and nothing expected."""
    apart = norm([a.double() - b.double() for a, b in zip(found, expected, strict=True)])
    whole = norm(expected)
    return apart / whole if whole else (float("inf") if apart else 0.0)
