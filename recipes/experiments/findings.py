"""What audit, lint and doctor say about a trainer's first step. Knows the tools, no fault.

who          is asked                                                             says
audit        before the first update (audit_first_step=True)                      the checks that fail, and notes
saved audit  the first step's rollouts, from their file                           the checks that fail
lint         the same rollouts as conversations with their answers                the kinds of findings
doctor       the tokenizer and its chat template                                  the kinds of findings
"""

from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain
from pathlib import Path

from envmask_trl import AuditFailed, EnvMaskGRPOTrainer, audit, check_template, lint, load_rollouts

Findings = dict[str, list[str]]


def findings_of(trainer: EnvMaskGRPOTrainer, rows: Sequence[dict]) -> Findings:
    """Train one audited step, and ask every tool; {"audit": ["observations are seen: ..."], "lint": [], ...}.

    Args:
        trainer: made with audit_first_step=True and max_steps=1.
        rows: the dataset rows of the step, in order, with their `answer`.
    """
    saved = Path(str(trainer.args.output_dir)) / "rollouts"
    with redirect_stdout(StringIO()):
        try:
            trainer.train()
            report = trainer.audit_report
        except AuditFailed as failure:
            report = failure.report
        verdict = check_template(trainer.processing_class, tools=trainer.tools)
    assert report is not None
    return {
        "audit": [f"{check.name}: {check.says}" for check in report.faults] + list(report.notes),
        "saved audit": audit_saved(saved, trainer),
        "lint": lint_saved(saved, trainer, rows),
        "doctor": [f"{finding.kind}: {finding}" for finding in verdict.findings],
    }


def audit_saved(saved: Path, trainer: EnvMaskGRPOTrainer) -> list[str]:
    try:
        report = audit(saved, model=trainer.model)
    except ValueError as error:  # columns that cannot be of one rollout
        return [f"cannot be read: {error}"]
    return [f"{check.name}: {check.says}" for check in report.faults]


def lint_saved(saved: Path, trainer: EnvMaskGRPOTrainer, rows: Sequence[dict]) -> list[str]:
    """The rollouts as conversations; each question has `num_generations` of them, which may well be the same."""
    each = trainer.num_generations
    assert each is not None
    answers = chain.from_iterable([row["answer"]] * each for row in rows)
    conversations = [
        {"messages": [*rollout["prompt"], *rollout["messages"]], "answer": answer}
        for rollout, answer in zip(load_rollouts(saved), answers, strict=False)
    ]
    report = lint(conversations, tools=trainer.tools, ignore=["duplicate"])
    return [f"{kind}: {count} of {len(conversations)} rollouts" for kind, count in report.counts.items()]


def only_here(found: Findings, clean: Findings) -> Findings:
    """What is said here and not, in any number, about the clean run."""
    usual = {who: {sentence.split(":")[0] for sentence in said} for who, said in clean.items()}
    return {who: [s for s in said if s.split(":")[0] not in usual.get(who, set())] for who, said in found.items()}
