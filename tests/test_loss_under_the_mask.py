"""The loss and its gradient where some tokens are the environment's. Numbers are worked out in the comments."""

import math

import pytest
import torch

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer

from .tiny_for_loss import (
    LOSS_TYPES,
    loss_and_gradients,
    masked_loss_and_gradients,
    micro_batch,
    small_model,
    trainer_of,
    uniform_model,
)

NAN, INF = float("nan"), float("inf")
#        P       a   E   t   t   b   E       env_mask
TURNS = ([1, 2], [10, 19, 20, 21, 11, 19], [1, 1, 0, 0, 1, 1])
SHORT = ([3], [12, 19], [1, 1])
SILENT = ([4], [22, 23], [0, 0])  # nothing of it was sampled


def ours(tmp_path, model=None, **options):
    return trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, model, **options)


def assert_same(left, right):
    assert left[0] == right[0]
    assert left[1].keys() == right[1].keys()
    assert all(torch.equal(left[1][name], right[1][name]) for name in left[1])


def test_grpo_averages_over_the_rows_that_have_a_trained_token(tmp_path):
    trainer = ours(tmp_path, loss_type="grpo")
    # the ratio is 1, so a row's mean is -advantage; the silent row has no vote: -(1.0 + 0.5) / 2
    loss, _ = masked_loss_and_gradients(trainer, micro_batch([TURNS, SHORT, SILENT], [1.0, 0.5, 7.0]))
    assert loss == pytest.approx(-0.75)


def test_cispo_averages_over_the_trained_tokens(tmp_path):
    trainer = ours(tmp_path, uniform_model(), loss_type="cispo", epsilon_high=5.0)
    # 4 tokens of advantage 1 and 2 of 0.5, each of log-prob -ln 32: (4 * 1 + 2 * 0.5) * ln 32 / 6
    loss, _ = masked_loss_and_gradients(trainer, micro_batch([TURNS, SHORT, SILENT], [1.0, 0.5, 7.0]))
    assert loss == pytest.approx(5 / 6 * math.log(32), rel=1e-6)


def test_dapo_divides_by_the_trained_tokens_and_not_by_the_masked_ones(tmp_path):
    trainer = ours(tmp_path, loss_type="dapo", max_completion_length=200)
    long_observation = ([1], [10, *[20] * 100, 19], [1, *[0] * 100, 1])
    eight = ([2], [12] * 8, [1] * 8)
    # 2 trained tokens of advantage 1 and 8 of 0, among 100 masked: -2 / 10
    loss, _ = masked_loss_and_gradients(trainer, micro_batch([long_observation, eight], [1.0, 0.0]))
    assert loss == pytest.approx(-0.2)


def test_the_kl_is_averaged_over_the_rows_that_have_a_trained_token(tmp_path):
    trainer = ours(tmp_path, uniform_model(), loss_type="grpo", beta=0.5)
    reference = torch.full((2, 6), -math.log(32) + 0.3)
    reference[1] = -2.0
    batch = micro_batch([TURNS, SILENT], [0.0, 0.0], ref_per_token_logps=reference)
    # k3 = exp(0.3) - 0.3 - 1, once, not halved by the silent row
    loss, _ = masked_loss_and_gradients(trainer, batch)
    assert loss == pytest.approx(0.5 * (math.exp(0.3) - 1.3), rel=1e-5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_what_stands_at_masked_positions_changes_nothing(loss_type, tmp_path):
    level = "sequence" if loss_type == "luspo" else "token"
    trainer = ours(tmp_path, loss_type=loss_type, beta=0.1, importance_sampling_level=level)

    def batch(poison):
        old, reference = torch.full((2, 6), -3.4), torch.full((2, 6), -3.5)
        advantages = torch.tensor([[1.0] * 6, [-0.5] * 6])
        for column in (old, reference, advantages):
            column[0, 2:4] = poison  # the observation
            column[1, 2:] = poison  # padding
        columns = {"old_per_token_logps": old, "ref_per_token_logps": reference}
        made = micro_batch([TURNS, SHORT], [0.0, 0.0], **columns)
        return {**made, "advantages": advantages}

    clean = masked_loss_and_gradients(trainer, batch(0.0))
    assert math.isfinite(clean[0]) and clean[0] != 0.0
    for poison in (NAN, INF, -INF, -95.0):
        assert_same(masked_loss_and_gradients(trainer, batch(poison)), clean)


def test_an_advantage_of_a_row_without_trained_tokens_changes_nothing(tmp_path):
    trainer = ours(tmp_path, loss_type="grpo")
    clean = masked_loss_and_gradients(trainer, micro_batch([TURNS, SILENT], [1.0, 0.0]))
    assert_same(masked_loss_and_gradients(trainer, micro_batch([TURNS, SILENT], [1.0, NAN])), clean)


@pytest.mark.parametrize("column", ["old_per_token_logps", "ref_per_token_logps"])
def test_a_nan_at_a_trained_position_stays_visible(column, tmp_path):
    trainer = ours(tmp_path, beta=0.1)
    columns = {"old_per_token_logps": torch.full((1, 6), -3.4), "ref_per_token_logps": torch.full((1, 6), -3.4)}
    columns[column][0, 4] = NAN
    loss, _ = masked_loss_and_gradients(trainer, micro_batch([TURNS], [1.0], **columns))
    assert math.isnan(loss)


def test_a_nan_in_the_prediction_of_an_observation_reaches_neither_loss_nor_gradient(tmp_path):
    """The policy's own log-prob is NaN there: 0 * NaN would poison every weight of the LM head."""
    trainer = ours(tmp_path)
    batch = micro_batch([TURNS], [1.0])
    clean = masked_loss_and_gradients(trainer, batch)

    def spoil(module, inputs, output):
        # predictions: position 3 (E) -> t, 4 (t) -> t; behind the last layer no later token can see it
        output = output.clone()
        output[:, 3:5] = NAN
        return output

    handle = trainer.model.model.norm.register_forward_hook(spoil)
    spoiled = masked_loss_and_gradients(trainer, batch)
    handle.remove()
    assert spoiled[0] == clean[0]
    assert torch.equal(spoiled[1]["lm_head.weight"], clean[1]["lm_head.weight"])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_batch_without_a_trained_token_gives_zero_with_a_graph(loss_type, beta, tmp_path):
    """Nothing divides by zero."""
    level = "sequence" if loss_type == "luspo" else "token"
    trainer = ours(tmp_path, loss_type=loss_type, beta=beta, importance_sampling_level=level)
    batch = micro_batch([SILENT, SILENT], [1.0, -1.0], ref_per_token_logps=torch.full((2, 2), NAN))
    loss, gradients = masked_loss_and_gradients(trainer, batch)
    assert loss == 0.0
    assert gradients and all((gradient == 0).all() for gradient in gradients.values())
    logged = [value for values in trainer._metrics["train"].values() for value in values]
    assert logged and all(math.isfinite(value) for value in logged)


def test_old_logprobs_on_environment_tokens_make_a_ratio_of_exactly_one(tmp_path):
    trainer = ours(tmp_path, loss_type="grpo", importance_sampling_level="sequence")
    policy = trainer.model(torch.tensor([[*TURNS[0], *TURNS[1]]])).logits.log_softmax(-1)
    own = policy[0, 1:-1].gather(1, torch.tensor(TURNS[1]).unsqueeze(1)).T.detach()  # [1, 6]
    old = torch.where(torch.tensor([TURNS[2]]) == 1, own, torch.tensor(-50.0))
    loss, _ = masked_loss_and_gradients(trainer, micro_batch([TURNS], [1.0], old_per_token_logps=old))
    assert loss == pytest.approx(-1.0, abs=1e-5)


def test_the_loss_has_no_gradient_through_the_prediction_of_an_observation(tmp_path):
    trainer = ours(tmp_path)
    kept = {}

    def keep(module, inputs, output):
        if output.requires_grad:  # the first micro-batch is forwarded without a graph too, to compare
            output.retain_grad()
            kept["hidden"] = output

    handle = trainer.model.model.norm.register_forward_hook(keep)
    masked_loss_and_gradients(trainer, micro_batch([TURNS], [1.0]))
    handle.remove()
    # tokens:              1  2  a  E  t  t  b    and the last E, which is only predicted
    # position predicts:   2  a  E  t  t  b  E
    has_gradient = (kept["hidden"].grad[0] != 0).any(dim=1).int().tolist()
    assert has_gradient == [0, 1, 1, 0, 0, 1, 1]


def test_an_observation_is_seen_by_later_model_tokens(tmp_path):
    trainer = ours(tmp_path)
    changed = (TURNS[0], [10, 19, 25, 21, 11, 19], TURNS[2])

    def logprobs(row):
        batch = micro_batch([row], [1.0])
        trainer.trained = batch["tool_mask"]
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        values, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 6)
        trainer.trained = None
        return values[0]

    before, after = logprobs(TURNS), logprobs(changed)
    assert torch.equal(before[:2], after[:2])  # what came before it
    assert (before[2:4] == 0).all()  # the observation itself is not scored
    assert (before[4:] - after[4:]).abs().min() > 1e-6  # what came after it


def test_the_attention_mask_covers_observations_also_when_pad_is_eos(tmp_path):
    """The loss mask is not the attention mask, and padding is known from lengths."""
    trainer = ours(tmp_path)
    trainer.tree_forward = None  # the rows apart: a tree has no padding that an attention mask would have to cover
    seen = {}

    def keep(module, args, kwargs):
        seen["attention_mask"] = kwargs["attention_mask"]

    handle = trainer.model.register_forward_pre_hook(keep, with_kwargs=True)
    loss_and_gradients(
        trainer, micro_batch([([1], [10, 19, 20, 21, 11, 19], TURNS[2]), ([1], [10, 19], [1, 1])], [1.0, 1.0])
    )
    handle.remove()
    assert seen["attention_mask"][:, 1:].tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]


def test_the_ablation_trains_observations_and_never_the_prompt():
    from envmask_trl import Segment, Source, StopReason, Trajectory
    from envmask_trl.training.rows import trained_sources

    segments = (
        Segment(Source.PROMPT, (1, 2)),
        Segment(Source.MODEL, (10,)),
        Segment(Source.TEMPLATE, (20,)),
        Segment(Source.ENV, (21, 22)),
        Segment(Source.TEMPLATE, (23,)),
        Segment(Source.MODEL, (11, 19)),
    )
    row = Trajectory(segments, StopReason.ANSWERED)
    assert trained_sources(list(row.env_mask), row, mask_env_tokens=True) == [1, 0, 0, 0, 0, 1, 1]
    assert trained_sources(list(row.env_mask), row, mask_env_tokens=False) == [1, 0, 1, 1, 0, 1, 1]


def test_a_loss_path_that_ignores_the_mask_would_be_noticed(tmp_path):
    """The same rows with and without a mask have different gradients."""
    trainer = ours(tmp_path, small_model())
    masked = masked_loss_and_gradients(trainer, micro_batch([TURNS], [1.0]))
    unmasked = masked_loss_and_gradients(trainer, micro_batch([(TURNS[0], TURNS[1], [1] * 6)], [1.0]))
    assert not torch.equal(masked[1]["lm_head.weight"], unmasked[1]["lm_head.weight"])
