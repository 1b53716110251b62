"""The audit of saved rollouts on a model. Knows rows and a model, no trainer; that of a trainer is in `first_step`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..rollout.model_and_tokenizer import check_model
from .audit_checks import LEARNED, SAME, check_learned, check_masks, check_not_learned, check_seen, nudges, surprises
from .audit_report import AuditReport, Check
from .audited_rows import AuditedRow, row_of_saved, trained_by_author
from .gradient_report import norm, paired_report, with_signal
from .independent_loss import Counts, Objective, independent_step, row_logprobs, weighted_gradient
from .records import load_rollouts
from .row_proof import check_saved_together
from .untouched import untouched

NO_TRAINER = Check(SAME, None, "a file has no trainer to compare with; train with audit_first_step=True for that")


def audit(
    rollouts: str | os.PathLike | Sequence[Mapping[str, Any]],
    *,
    model: Any,
    tokenizer: Any = None,
    objective: Objective | None = None,
    max_rows: int = 64,
) -> AuditReport:
    """Are a file's environment tokens seen and not learned, on this model?

    The masks that the trainer wrote down are held against the authors of the tokens, and every gradient is that of a
    plain forward of each row alone. Nothing of the model changes: weights, `.grad`, modes, random numbers.

    Example:
        report = audit("runs/agent/rollouts", model=model, tokenizer=tokenizer)
        print(report)
        report.passed, report.paired.cosine, report.surprises[0].nll

    Args:
        rollouts: a parquet file, a folder of them, or the rows of `load_rollouts`.
        model: a transformers causal language model, on any device.
        tokenizer: for the text of the most unexpected observation; optional.
        objective: the loss in which the masks are tried; `Objective()` is TRL's default.
        max_rows: most rows that are forwarded; the masks, and whether rewards and advantages belong together, are
            read of all.

    Returns:
        The report; it raises nothing on a fault, see `AuditReport.passed`.

    Raises:
        FileNotFoundError: no such file, or a folder without one.
        ValueError: no row has a completion, or the columns of one cannot be of one rollout, or the model has no
            embedding for an id of one.
    """
    saved = load_rollouts(rollouts) if isinstance(rollouts, str | os.PathLike) else list(rollouts)
    check_model(model)
    every_row = [row_of_saved(number, row) for number, row in enumerate(saved)]
    check_ids(model, every_row)
    rows = every_row[:max_rows]
    if not any(row.completion_ids for row in rows):
        raise ValueError(
            f"none of {len(rows)} rollouts has a completion; expected rows as `load_rollouts` returns them"
        )
    used = [with_an_advantage(row) for row in rows]
    objective = objective or Objective()
    with untouched(model):
        checks = masks_against_authors(model, used, objective)
        before = [row_logprobs(model, row, objective).detach() for row in used]
        changes = nudges(used)
        after = [row_logprobs(model, change.changed, objective).detach() for change in changes]
        with_advantages, has_signal = with_signal(rows)
        paired = paired_report(model, with_advantages, objective)
    return AuditReport(
        f"audit of {len(used)} of {len(saved)} saved rollouts, in the loss {objective.loss_type}",
        (
            *checks,
            masks_of_all(every_row),
            check_seen(used, changes, before, after),
            NO_TRAINER,
            check_saved_together(saved),
        ),
        paired,
        surprises(used, before, tokenizer and tokenizer.decode),
        () if has_signal else ("no row has an advantage, so the report on the mask was made with 1 for each",),
    )


def masks_against_authors(model: Any, rows: Sequence[AuditedRow], objective: Objective) -> tuple[Check, Check]:
    """Does the loss under the saved masks learn nothing but what the model wrote, and all of that?"""
    masks = [row.trained for row in rows]
    step = independent_step(model, rows, masks, Counts.of(masks), objective)
    by_author = [replace(row, trained=trained_by_author(row.sources, row.completion_ids)) for row in rows]
    foreign = [w * w.new_tensor(row.foreign) for w, row in zip(step.weights, by_author, strict=True)]
    contribution = norm(weighted_gradient(model, rows, foreign, objective))
    not_learned = check_not_learned(by_author, step.weights, contribution)
    if not any(map(any, masks)):
        return not_learned, Check(LEARNED, None, "every row is left out of the loss")
    kept = [torch.tensor(row.trained if any(mask) else mask) for row, mask in zip(by_author, masks, strict=True)]
    return not_learned, check_learned(by_author, step.weights, kept)


def masks_of_all(rows: Sequence[AuditedRow]) -> Check:
    """Is each saved mask, also of rows that are not forwarded, that of the authors, or of a row that is left out?"""
    by_author = [trained_by_author(row.sources, row.completion_ids) for row in rows]
    expected = [
        replace(row, trained=own if any(row.trained) else row.trained) for row, own in zip(rows, by_author, strict=True)
    ]
    return check_masks(expected, [row.trained for row in rows])


def check_ids(model: Any, rows: Sequence[AuditedRow]) -> None:
    """Raise ValueError where a rollout has an id that the model's embedding has no row for."""
    known = getattr(model.get_input_embeddings(), "num_embeddings", None)  # some models embed in a way of their own
    highest = [max((*row.prompt_ids, *row.completion_ids), default=-1) for row in rows]
    if known is not None and max(highest, default=-1) >= known:
        number = next(number for number, each in enumerate(highest) if each >= known)
        raise ValueError(
            f"row {number} has the token id {highest[number]}, but the model's embedding has {known} rows (ids 0 to "
            f"{known - 1}); give the model that made the rollouts"
        )


def with_an_advantage(row: AuditedRow) -> AuditedRow:
    """The row with 1 where its advantage is 0, which would show nothing of the mask."""
    return replace(row, advantages=tuple(value or 1.0 for value in row.advantages))
