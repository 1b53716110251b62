"""The audit's parts by hand: the independent loss, advantages, masks by author, the paired report, surprises."""

import math
from dataclasses import replace

import pytest
import torch

from envmask_trl import Source
from envmask_trl.inspect.audit import audit
from envmask_trl.inspect.audit_checks import SEEN
from envmask_trl.inspect.audited_rows import AuditedRow, trained_by_author
from envmask_trl.inspect.gradient_report import paired_report
from envmask_trl.inspect.independent_loss import Counts, Objective, independent_step
from envmask_trl.inspect.row_proof import group_advantages

from .tiny_for_loss import small_model, uniform_model

NAN = float("nan")
M, E, T = Source.MODEL, Source.ENV, Source.TEMPLATE


def row(completion, sources, advantage=1.0, prompt=(1, 2)):
    return AuditedRow(prompt, tuple(completion), tuple(sources), trained_by_author(sources, completion), (advantage,))


def test_the_independent_loss_by_hand():
    rows = [row([10, 19, 20, 11], [M, M, E, M], 1.0), row([12, 19], [M, M], 0.5)]
    masks = [r.trained for r in rows]
    assert masks == [(1, 1, 0, 1), (1, 1)]

    def loss(loss_type, **options):
        return independent_step(uniform_model(), rows, masks, Counts.of(masks), Objective(loss_type, **options)).loss

    assert loss("grpo") == pytest.approx(-(1.0 + 0.5) / 2)
    assert loss("dapo") == pytest.approx(-(3 * 1.0 + 2 * 0.5) / 5)
    assert loss("dr_grpo", max_completion_length=10) == pytest.approx(-(3 * 1.0 + 2 * 0.5) / 20)
    # each log-prob is -ln 32
    assert loss("cispo", epsilon_high=5.0) == pytest.approx((3 * 1.0 + 2 * 0.5) * math.log(32) / 5)


def test_a_loss_type_that_the_audit_cannot_state_is_refused():
    with pytest.raises(ValueError, match="loss_type is 'new', but the audit can state only grpo, bnpo"):
        Objective("new")


def test_advantages_by_hand():
    rewards = torch.tensor([[1.0], [3.0], [NAN], [4.0]])
    kinds = {"num_generations": 2, "aggregation": "sum_then_normalize"}
    none = group_advantages(rewards, torch.tensor([2.0]), scale_rewards="none", **kinds)
    assert none.tolist() == [-2.0, 2.0, 0.0, 0.0]  # 2 and 6 around 4; one that is not scored, one alone
    group = group_advantages(rewards, torch.tensor([2.0]), scale_rewards="group", **kinds)
    assert group[:2].tolist() == pytest.approx([-2 / math.sqrt(8), 2 / math.sqrt(8)], rel=1e-3)


def test_the_mask_by_author_ends_at_the_first_stop_of_the_last_turn():
    #          a   E   t   E   n   b   E   x
    ids = [10, 19, 20, 19, 21, 11, 19, 12]
    sources = [M, M, E, E, T, M, M, M]
    assert trained_by_author(sources, ids, stop_token_ids=(19,)) == (1, 1, 0, 0, 0, 1, 1, 0)
    assert trained_by_author(sources, ids, mask_env_tokens=False) == (1, 1, 1, 1, 0, 1, 1, 1)


def test_without_environment_tokens_the_paired_report_shows_no_difference():
    report = paired_report(small_model(), [row([10, 19], [M, M]), row([11, 12], [M, M], -0.5)], Objective())
    assert (report.tokens, report.loss, report.gradient) == (0.0, 0.0, 0.0)
    assert report.cosine == pytest.approx(1.0) and report.norm_with_mask == pytest.approx(report.norm_without_mask)


def test_the_paired_report_by_hand():
    # 3 of 8 tokens are the environment's; |loss| is the advantage: 2 x 1 of 4 x 1 ... and 1 x 0.5 of 4 x 0.5
    rows = [row([10, 20, 21, 11], [M, E, E, M], 1.0), row([12, 22, 13, 19], [M, T, M, M], -0.5)]
    report = paired_report(small_model(), rows, Objective())
    assert report.tokens == 3 / 8 and report.loss == pytest.approx((2 * 1.0 + 1 * 0.5) / (4 * 1.0 + 4 * 0.5))
    assert 0 < report.cosine < 1 and report.gradient > 0


def test_rows_that_are_left_out_are_no_part_of_the_paired_report():
    rows = [row([10, 20, 11], [M, E, M], 1.0)]
    left_out = replace(row([12, 21, 13], [M, E, M], 1.0), trained=(0, 0, 0))
    assert paired_report(small_model(), [*rows, left_out], Objective()) == paired_report(
        small_model(), rows, Objective()
    )


def saved_row(**columns):
    return {
        "prompt_ids": [1, 2],
        #                  a   E   t   t   b   E
        "completion_ids": [10, 19, 20, 21, 11, 19],
        "sources": ["model", "model", "env", "env", "model", "model"],
        "env_mask": [1, 1, 0, 0, 1, 1],
        "turn_index": [0, 0, -1, -1, 1, 1],
        "stop_reason": "answered",
        **columns,
    }


def test_the_surprise_of_an_observation_by_hand():
    report = audit([saved_row()], model=uniform_model())
    (surprise,) = report.surprises
    assert (surprise.row, surprise.start, surprise.tokens) == (0, 2, 2)
    assert surprise.nll == pytest.approx(math.log(32))


def test_a_model_that_does_not_react_to_an_observation_is_said(tmp_path):
    report = audit([saved_row()], model=uniform_model())
    (seen,) = [check for check in report.checks if check.name == SEEN]
    assert seen.passed is False and "the model does not see it" in seen.says


def test_a_file_without_a_completion_is_refused(tmp_path):
    empty = saved_row(completion_ids=[], sources=[], env_mask=[], turn_index=[])
    with pytest.raises(ValueError, match="none of 1 rollouts has a completion"):
        audit([empty], model=small_model())
