"""The audit of a trainer's first step. Knows the order of things; the questions stand in `audit_checks`."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import DistributedType, gather
from torch import Tensor

from ..trajectory import Source
from .audit_checks import Evidence, answer_all, check_masks, nudges, surprises
from .audit_report import AuditFailed, AuditReport, Check
from .audited_rows import AuditedRow, trained_by_author
from .equal_calls import notes_on_equal_calls
from .gradient_report import norm, paired_report, with_signal
from .independent_loss import Counts, independent_step, row_logprobs, weighted_gradient
from .reward_witness import RewardWitness
from .row_proof import TOGETHER, check_together, group_advantages, match_rows
from .trainer_path import (
    Batch,
    batch_advantages,
    batch_ids,
    made_loud,
    not_stated,
    objective_of,
    rows_of_rollout_func,
    tolerance,
    trainer_logprobs,
    trainer_step,
    with_constants,
    with_ids,
)
from .untouched import untouched

TITLE = "audit of the first step"


class FirstStepAudit:
    """Watches the rewards of a trainer's first generation, then audits its micro-batches before they are trained.

    Example:
        audit = FirstStepAudit(trainer)      # before the first generation
        report = audit.run(batches, masks)   # its micro-batches, in the order of training
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.witness = RewardWitness(trainer)

    def run(self, batches: Sequence[Batch], masks: Sequence[Tensor]) -> AuditReport:
        """The report, which the main process prints.

        Args:
            batches: the micro-batches of the generation.
            masks: [B, C] of each, 1 = the trainer is about to train this token.

        Raises:
            AuditFailed: on every process, when a check fails on one of them.
        """
        trainer = self.trainer
        self.witness.release()
        if trainer.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
            report = AuditReport(TITLE, (Check("everything", None, "each process has only a part of the weights"),))
        else:
            with untouched(trainer.model), trainer.accelerator.autocast():
                report = self.examine(batches, masks)
                report = replace(report, notes=(*report.notes, *self.witness.notes(), *self.notes_on_tools()))
        trainer.audit_report = report
        if trainer.accelerator.is_main_process:
            print(report)
        if trainer.any_live(len(report.faults)):
            raise AuditFailed(report)
        return report

    def notes_on_tools(self) -> list[str]:
        """Environments have a state, so that equal calls may well get different results there."""
        return [] if self.trainer.environments else notes_on_equal_calls(self.trainer.trajectories)

    def examine(self, batches: Sequence[Batch], masks: Sequence[Tensor]) -> AuditReport:
        """The row proof and the masks over all micro-batches, all else on the first of them that has an observation."""
        advantages = [value for batch in batches for value in batch_advantages(batch)]
        if self.trainer.trajectories:
            rows = sampled_rows(self.trainer)
            rows, fault = self.with_expected_advantages(rows)
            matches = match_rows([ids for batch in batches for ids in batch_ids(batch)], advantages, rows)
            together = check_together(matches, advantages, rows, fault)
        else:
            rows = [row for batch in batches for row in rows_of_rollout_func(batch)]
            matches = list(range(len(rows)))
            together = Check(TOGETHER, None, "the rows of a rollout_func are known only from the batch itself")
        if self.trainer.any_live(sum(match is None for match in matches)):  # no process may go on alone
            return AuditReport(TITLE, (together,))
        ordered = iter(rows[match] for match in matches if match is not None)
        by_batch = [[next(ordered) for _ in batch["completion_ids"]] for batch in batches]
        number = next((i for i, members in enumerate(by_batch) if nudges(members)), 0)
        report = examine_batch(self.trainer, batches[number], by_batch[number], self.counts(by_batch, number), together)
        if not self.trainer.trajectories:
            return report
        members = [row for rows in by_batch for row in rows]
        masked = check_masks(members, [mask for batch in masks for mask in batch.tolist()])
        return replace(report, checks=(*report.checks, masked))

    def with_expected_advantages(self, rows: list[AuditedRow]) -> tuple[list[AuditedRow], str]:
        """The rows with the advantages that their own rewards make, and a sentence if a reward went astray."""
        trainer = self.trainer
        of_trainer = trainer.own_rows(trainer.rewards_per_func, len(rows))
        fault = self.witness.fault([row.completion_ids for row in rows], of_trainer)
        rewards = self.witness.rewards(of_trainer)
        rewards[torch.tensor(trainer.columns["dropped"], device=rewards.device)] = torch.nan
        prompts = gather(fingerprints(rows, rewards.device)).view(-1, trainer.num_generations)
        if not fault and (prompts != prompts[:, :1]).any():
            fault = "rollouts of different prompts stand in one group, whose mean reward is the baseline"
        advantages = group_advantages(
            gather(rewards),
            trainer.reward_weights.to(rewards.device),
            num_generations=trainer.num_generations,
            scale_rewards=trainer.scale_rewards,
            aggregation=trainer.multi_objective_aggregation,
        )
        own = trainer.own_rows(advantages, len(rows)).tolist()
        return [replace(row, advantages=(value,)) for row, value in zip(rows, own, strict=True)], fault

    def counts(self, by_batch: Sequence[Sequence[AuditedRow]], number: int) -> Counts:
        """The denominators of micro-batch `number`, counted over its optimizer step and all processes."""
        trainer = self.trainer
        window = min(trainer.args.gradient_accumulation_steps, len(by_batch))
        start = number - number % window
        members = by_batch[start : start + window]
        masks = [row.trained for batch in members for row in batch]
        totals = torch.tensor([sum(map(any, masks)), sum(map(sum, masks))], device=trainer.accelerator.device)
        voting, tokens = (trainer.sum_over_processes(totals) / trainer.accelerator.num_processes).tolist()
        own = by_batch[number]
        return Counts(
            rows=len(own),
            tokens=sum(sum(row.trained) for row in own),
            voting_rows=voting,
            step_tokens=tokens,
            micro_batches=len(members),
            accumulation=trainer.current_gradient_accumulation_steps,
        )


def sampled_rows(trainer: Any) -> list[AuditedRow]:
    """The rollouts of this process in sampling order, their masks from the trajectories' authors; no advantages yet."""
    args, columns = trainer.args, trainer.columns
    rows = []
    for index, trajectory in enumerate(trainer.trajectories):
        kept = len(columns["completion_ids"][index])
        completion_ids = trajectory.completion_ids[:kept]
        trained = trained_by_author(
            trajectory.sources[:kept],
            completion_ids,
            stop_token_ids=trainer.eos_token_ids,
            mask_env_tokens=args.mask_env_tokens,
        )
        if columns["no_loss"][index]:
            trained = (0,) * len(trained)
        prompt_ids = tuple(columns["prompt_ids"][index])
        rows.append(AuditedRow(prompt_ids, completion_ids, trajectory.sources[:kept], trained, (0.0,)))
    filler = trainer.processing_class.pad_token_id
    return [row if row.completion_ids else with_filler(row, filler) for row in rows]


def with_filler(row: AuditedRow, filler_id: int) -> AuditedRow:
    """A row in which nothing was sampled, as the trainer has it: tensors need a token."""
    return replace(row, completion_ids=(filler_id,), sources=(Source.TEMPLATE,), trained=(0,))


def fingerprints(rows: Sequence[AuditedRow], device: torch.device) -> Tensor:
    """A number per row that is equal for equal prompts: [B]."""
    return torch.tensor([zlib.crc32(repr(row.prompt_ids).encode()) for row in rows], device=device)


def examine_batch(trainer: Any, batch: Batch, rows: list[AuditedRow], counts: Counts, together: Check) -> AuditReport:
    """All questions but that of the row proof, on one micro-batch."""
    model, objective = trainer.model, objective_of(trainer)
    rows = [with_constants(row, batch, index) for index, row in enumerate(rows)]
    loud_batch, loud = made_loud(batch, rows)
    changes = nudges(loud)
    found = trainer_step(trainer, loud_batch, loud)
    after = trainer_logprobs(trainer, with_ids(loud_batch, [(c.row, c.changed) for c in changes]), loud)
    expected = independent_step(model, loud, [row.trained for row in loud], counts, objective)
    foreign = [weight * weight.new_tensor(row.foreign) for weight, row in zip(found.weights, loud, strict=True)]
    evidence = Evidence(
        rows=loud,
        found=found,
        expected=expected,
        contribution=norm(weighted_gradient(model, loud, foreign, objective)),
        changes=changes,
        found_after=[after[change.row] for change in changes],
        expected_after=[row_logprobs(model, change.changed, objective).detach() for change in changes],
    )
    checks = (*answer_all(evidence, tolerance(trainer), not_stated(trainer)), together)
    rows, has_signal = with_signal(rows)
    notes = [] if has_signal else ["every advantage is 0, so the report on the mask was made with 1 for each"]
    notes += [] if trainer.args.mask_env_tokens else ["mask_env_tokens=False: observations are trained, as asked for"]
    decode = trainer.processing_class.decode
    paired, seen = paired_report(model, rows, objective), surprises(rows, expected.logprobs, decode)
    trained, tokens = sum(sum(row.trained) for row in rows), sum(len(row.completion_ids) for row in rows)
    title = f"{TITLE}: a micro-batch of {len(rows)} rows, {trained} of {tokens} completion tokens are trained"
    return AuditReport(title, checks, paired, seen, tuple(notes))
