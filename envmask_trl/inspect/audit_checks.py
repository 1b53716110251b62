"""The questions of an audit, each answered by one `Check`. Knows rows, log-probs, gradients: no model, no trainer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from ..trajectory import Source
from .audit_report import Check, Surprise
from .audited_rows import AuditedRow
from .gradient_report import distance
from .independent_loss import Step

Rows = Sequence[AuditedRow]
NOT_LEARNED = "environment tokens are not learned"
LEARNED = "tokens of the model are learned"
SEEN = "observations are seen"
MASKED = "the mask of every row is that of its authors"
SAME = "loss and gradient are those of a plain forward of each row alone"


def check_not_learned(rows: Rows, weights: Sequence[Tensor], contribution: float) -> Check:
    """Is the weight of every foreign token in the loss, and so its part of the gradient, exactly 0?

    Args:
        weights: d loss / d log-prob of each row's tokens, [C]: of the loss that is audited.
        contribution: norm of the foreign tokens' part of the gradient, from a plain forward with these weights.
    """
    wrong = [
        (index, position)
        for index, (row, weight) in enumerate(zip(rows, weights, strict=True))
        for position, (value, foreign) in enumerate(zip(weight.tolist(), row.foreign, strict=True))
        if foreign and value != 0
    ]
    if not wrong and contribution == 0:
        own = sum(s is Source.MODEL and not t for row in rows for s, t in zip(row.sources, row.trained, strict=True))
        tokens = sum(sum(row.foreign) for row in rows) - own
        left_out = f" and {own} of the model that are left out" if own else ""
        return Check(NOT_LEARNED, True, f"the part of {tokens} such tokens{left_out} in the gradient is exactly 0")
    if not wrong and not isfinite(contribution):
        says = f"their part of the gradient is {contribution}; {first_not_finite(rows, weights)}"
        return Check(NOT_LEARNED, False, says)
    first = f"the first is {place(rows, *wrong[0])}" if wrong else "it comes from no single token"
    return Check(
        NOT_LEARNED,
        False,
        f"{len(wrong)} tokens that are not to be learned have a gradient, of norm {contribution:.4g} together; {first}",
    )


def first_not_finite(rows: Rows, weights: Sequence[Tensor]) -> str:
    """Where a NaN or infinite gradient comes from: an advantage, or else the model's own numbers."""
    for index, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        if unfit := [value for value in row.advantages if not isfinite(value)]:
            return f"row {index} has the advantage {unfit[0]}, expected a finite number: see its group's rewards"
        if not weight.isfinite().all():
            return f"the loss of {place(rows, index, weight.isfinite().tolist().index(False))} is not finite"
    return "the weights of the loss are finite, so the model's own gradient is not"


def check_masks(rows: Rows, masks: Sequence[Sequence[int]]) -> Check:
    """Is each row of all micro-batches trained where the model wrote, and nowhere else? Values are compared, no loss.

    Args:
        masks: of each row, [C] and padding: the positions that the trainer is about to train.
    """
    wrong = [
        (index, position)
        for index, (row, mask) in enumerate(zip(rows, masks, strict=True))
        for position, (value, expected) in enumerate(zip(mask, row.trained, strict=False))
        if value != expected
    ]
    if not wrong:
        return Check(MASKED, True, f"{len(rows)} rows, {sum(sum(row.trained) for row in rows)} tokens are 1")
    says = f"{len(wrong)} tokens have another mask than their author's; the first is {place(rows, *wrong[0])}"
    return Check(MASKED, False, says)


def check_learned(rows: Rows, weights: Sequence[Tensor], expected: Sequence[Tensor]) -> Check:
    """Has every token a weight in the loss that has one by the independent statement of the loss?"""
    wrong = [
        (index, position)
        for index, (found, right) in enumerate(zip(weights, expected, strict=True))
        for position, (value, other) in enumerate(zip(found.tolist(), right.tolist(), strict=True))
        if other != 0 and value == 0
    ]
    if wrong:
        return Check(LEARNED, False, f"{len(wrong)} tokens have no gradient; the first is {place(rows, *wrong[0])}")
    return Check(LEARNED, True, f"each of {sum(int((other != 0).sum()) for other in expected)} tokens has a gradient")


def place(rows: Rows, index: int, position: int) -> str:
    row = rows[index]
    return f"token {position} of row {index} (id {row.completion_ids[position]}, written by {row.sources[position]})"


@dataclass(frozen=True, slots=True)
class Nudge:
    """One observation token changed, to see what moves.

    Example:
        Nudge(row=2, position=7, changed=AuditedRow(...))
    """

    row: int
    position: int  # in the completion
    changed: AuditedRow


def nudges(rows: Rows) -> list[Nudge]:
    """The last observation token before a trained token of each row that has one, with another id in its place."""
    found = []
    for index, row in enumerate(rows):
        before = [i for i in range(row.last_trained()) if row.sources[i] is Source.ENV]
        if before:
            ids = list(row.completion_ids)
            ids[before[-1]] = ids[before[-1]] - 1 if ids[before[-1]] else 1  # any other id of the vocabulary
            found.append(Nudge(index, before[-1], replace(row, completion_ids=tuple(ids))))
    return found


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured on one micro-batch, by the audited path (`found`) and by the independent one (`expected`).

    Example:
        Evidence(rows, found=Step(...), expected=Step(...), contribution=0.0, changes=[Nudge(...)],
                 found_after=[tensor([...])], expected_after=[tensor([...])])
    """

    rows: Rows
    found: Step
    expected: Step
    contribution: float  # norm of the foreign tokens' part of the gradient: plain forward, weights of `found`
    changes: Sequence[Nudge]
    found_after: Sequence[Tensor]  # log-probs of the changed rows, [C] each
    expected_after: Sequence[Tensor]

    def trained(self, index: int) -> Tensor:
        return torch.tensor(self.rows[index].trained, device=self.expected.logprobs[index].device).bool()


def answer_all(evidence: Evidence, tolerance: float, not_stated: Sequence[str] = ()) -> list[Check]:
    """The answers to (a) not learned, and learned; (b) seen; (c) the same as the independent path."""
    rows, found, expected = evidence.rows, evidence.found, evidence.expected
    not_learned = check_not_learned(rows, found.weights, evidence.contribution)
    seen = check_seen(rows, evidence.changes, found.logprobs, evidence.found_after)
    if not_stated:
        reason = f"the audit does not state the part of the loss that {', '.join(not_stated)} adds"
        return [not_learned, Check(LEARNED, None, reason), seen, Check(SAME, None, reason)]
    return [not_learned, check_learned(rows, found.weights, expected.weights), seen, check_same(evidence, tolerance)]


def check_seen(rows: Rows, changes: Sequence[Nudge], before: Sequence[Tensor], after: Sequence[Tensor]) -> Check:
    """Do log-probs of later trained tokens move with an observation token, and earlier ones not?

    Args:
        before: log-probs of every row, [C] each; `after`: those of the changed rows, one per nudge.
    """
    if not changes:
        return Check(SEEN, None, "no row has an observation before a token that is trained")
    moves = []
    for change, values in zip(changes, after, strict=True):
        trained = torch.tensor(rows[change.row].trained, device=values.device).bool()
        move = torch.where(trained, (values - before[change.row]).abs(), 0.0)
        later, earlier = move[change.position + 1 :].max().item(), move[: change.position].max().item()
        if not later > 4 * earlier:
            says = (
                f"{place(rows, change.row, change.position)} was changed, and log-probs of later tokens of the model "
                f"move by {later:.2g}, those of earlier ones by {earlier:.2g}: the model does not see it"
            )
            return Check(SEEN, False, says)
        moves.append(later)
    return Check(
        SEEN,
        True,
        f"one observation token was changed in each of {len(moves)} rows: log-probs of later tokens of the model "
        f"move by {min(moves):.2g} to {max(moves):.2g}",
    )


def check_same(evidence: Evidence, tolerance: float) -> Check:
    """Are log-probs, loss and gradient of the audited path those of the independent one?

    Args:
        tolerance: largest difference of a log-prob in nats, and of loss and gradient relative to their size.
    """
    found, expected = evidence.found, evidence.expected
    pairs = [*zip(range(len(evidence.rows)), found.logprobs, expected.logprobs, strict=True)]
    changed_rows = [change.row for change in evidence.changes]
    pairs += zip(changed_rows, evidence.found_after, evidence.expected_after, strict=True)
    pairs += [
        (index, row.old_logprobs, expected.logprobs[index])
        for index, row in enumerate(evidence.rows)
        if row.old_logprobs is not None
    ]
    logprobs = max(largest(left - right, evidence.trained(index)) for index, left, right in pairs)
    size = sum(losses.abs().sum().item() for losses in expected.losses) or 1.0
    loss = abs(found.loss - expected.loss) / size
    gradient = distance(found.gradient, expected.gradient)
    says = (
        f"loss {found.loss:.6g} and {expected.loss:.6g}; log-probs differ by {logprobs:.2g} at most, the gradients "
        f"by {gradient:.2g} of their norm, {tolerance:.2g} is allowed"
    )
    return Check(SAME, all(value <= tolerance for value in (logprobs, loss, gradient)), says)


def largest(values: Tensor, keep: Tensor) -> float:
    return values[keep].abs().max().item() if keep.any() else 0.0


def surprises(
    rows: Rows, logprobs: Sequence[Tensor], decode: Callable[[list[int]], str] | None = None
) -> tuple[Surprise, ...]:
    """Mean -log p of the tokens of each observation."""
    return tuple(
        Surprise(
            index,
            run.start,
            len(run),
            -values[run.start : run.stop].mean().item(),
            decode(list(row.completion_ids[run.start : run.stop])) if decode else "",
        )
        for index, (row, values) in enumerate(zip(rows, logprobs, strict=True))
        for run in row.observations
    )
