"""The audit on sound trainers and files: it passes, states the loss as TRL computes it, and changes nothing."""

import random

import pytest
import torch

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer
from envmask_trl.inspect.audit import audit
from envmask_trl.inspect.audit_checks import LEARNED, NOT_LEARNED, SAME, SEEN
from envmask_trl.inspect.first_step import FirstStepAudit
from envmask_trl.inspect.gradient_report import distance
from envmask_trl.inspect.independent_loss import Counts, independent_step
from envmask_trl.inspect.row_proof import TOGETHER
from envmask_trl.inspect.trainer_path import objective_of, rows_of_rollout_func, trainer_step, with_constants
from envmask_trl.training.loss_inputs import trained_positions

from . import scripted_training
from .scripted_training import PlaysRows, make_trainer
from .tiny_for_loss import LOSS_TYPES, loss_and_gradients, micro_batch, trainer_of

#        P       a   E   t   t   b   E       env_mask
TURNS = ([1, 2], [10, 19, 20, 21, 11, 19], [1, 1, 0, 0, 1, 1])
SHORT = ([3], [12, 19], [1, 1])
SILENT = ([4], [22, 23], [0, 0])  # left out of the loss
ROWS = [TURNS, SHORT, ([5, 6, 7], [13, 20, 21, 22, 14], [1, 0, 0, 0, 1]), SILENT]


def ours(tmp_path, **options):
    return trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, **options)


@pytest.fixture(scope="module")
def with_kl(tmp_path_factory):
    """A trainer whose loss has every constant; the loss type is set by the tests."""
    return ours(tmp_path_factory.mktemp("kl"), beta=0.1, delta=1.5, temperature=0.9, gradient_accumulation_steps=2)


@pytest.fixture(scope="module", autouse=True)
def shorter_rows():
    """The scripts need 130 tokens at most, but for the one that is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted_training, "MAX_COMPLETION_LENGTH", 130)
        yield


def played(tmp_path, **options):
    trainer = make_trainer(tmp_path, **options)
    trainer.sampler = PlaysRows(trainer)
    trainer.train()
    return trainer


def audited(trainer, *batches):
    trainer.prepare_windows(list(batches))
    return audit_of(trainer, *batches)


def audit_of(trainer, *batches):
    return FirstStepAudit(trainer).run(batches, [trained_positions(b, trainer.cutting_eos_ids) for b in batches])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_sound_trainer_passes_with_each_loss_type(loss_type, with_kl, monkeypatch, capsys):
    monkeypatch.setattr(with_kl, "loss_type", loss_type)
    monkeypatch.setattr(with_kl.args, "balance_micro_batches", False)  # TRL pads all to one width, and these are not
    monkeypatch.setattr(with_kl, "importance_sampling_level", "sequence" if loss_type == "luspo" else "token")
    reference = {"ref_per_token_logps": torch.full((4, 6), -3.0)}
    others = micro_batch([SHORT, TURNS, SHORT, SHORT], [0.3, -0.3, 1.0, 2.0], **reference)
    batches = [micro_batch(ROWS, [1.0, -0.5, 0.0, 7.0], **reference), others]
    report = audited(with_kl, *batches)
    assert {check.name: check.passed for check in report.checks} == {
        NOT_LEARNED: True,
        LEARNED: True,
        SEEN: True,
        SAME: True,
        TOGETHER: None,  # there was no generation
    }
    assert str(report) in capsys.readouterr().out


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_independent_loss_is_that_of_trl_off_policy_and_with_a_kl(loss_type, level, with_kl, monkeypatch):
    """Ratios from 0.6 to 1.7, so that every branch of a clip is taken."""
    monkeypatch.setattr(with_kl, "loss_type", loss_type)
    monkeypatch.setattr(with_kl, "importance_sampling_level", level)
    monkeypatch.setattr(with_kl.args, "use_bias_correction_kl", level == "token")
    monkeypatch.setattr(with_kl.args, "gradient_accumulation_steps", 1)
    monkeypatch.setattr(with_kl.args, "steps_per_generation", 1)
    monkeypatch.setattr(with_kl, "current_gradient_accumulation_steps", 1)
    torch.manual_seed(1)
    columns = {f"{name}_per_token_logps": -3.5 + 0.3 * torch.randn(4, 6) for name in ("old", "ref")}
    monkeypatch.setattr(with_kl, "use_vllm", True)  # whose sampling is corrected by a ratio per token, or per row
    ratio = 0.5 + torch.rand(4, 6)
    is_trained = torch.tensor([mask + [0] * (6 - len(mask)) for _, _, mask in ROWS]).bool()
    columns["importance_sampling_ratio"] = torch.where(is_trained, ratio, 1.0) if level == "token" else ratio[:, :1]
    batch = micro_batch(ROWS, [1.0, -0.5, 0.7, 7.0], **columns)
    with_kl.prepare_windows([batch])
    rows = [with_constants(row, batch, index) for index, row in enumerate(rows_of_rollout_func(batch))]
    masks = [row.trained for row in rows]
    found = trainer_step(with_kl, batch, rows)
    expected = independent_step(with_kl.model, rows, masks, Counts.of(masks), objective_of(with_kl))
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert distance(found.gradient, expected.gradient) < 1e-5
    for left, right in zip(found.weights, expected.weights, strict=True):
        torch.testing.assert_close(left, right, atol=1e-7, rtol=1e-4)


def test_an_option_whose_loss_is_not_stated_is_said_and_the_rest_is_asked(tmp_path):
    trainer = ours(tmp_path, entropy_coef=0.1)
    batch = micro_batch(ROWS, [1.0, -0.5, 0.7, 7.0])
    report = audited(trainer, batch)
    by_name = {check.name: check for check in report.checks}
    assert by_name[NOT_LEARNED].passed and by_name[SEEN].passed
    assert by_name[SAME].passed is by_name[LEARNED].passed is None and "entropy_coef" in by_name[SAME].says


def test_the_old_logprobs_of_the_first_step_are_those_of_the_policy(tmp_path):
    trainer = ours(tmp_path)
    batch = micro_batch(ROWS, [1.0, -0.5, 0.7, 7.0], old_per_token_logps=torch.full((4, 6), -3.0))
    with pytest.raises(ValueError, match="FAULT   loss and gradient are those of a plain forward"):
        audited(trainer, batch)


def state_of(model):
    grads = [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]
    modes = [module.training for module in model.modules()]
    weights = [weight.detach().clone() for weight in model.parameters()]
    return weights, grads, modes, torch.get_rng_state(), random.getstate()


def assert_same_state(left, right):
    for before, after in zip(left[:2], right[:2], strict=True):
        for a, b in zip(before, after, strict=True):
            assert a is b is None or torch.equal(a, b)
    assert left[2] == right[2] and torch.equal(left[3], right[3]) and left[4] == right[4]


def with_dropout(model):
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    return model


def test_the_audit_leaves_a_trainer_as_it_was(tmp_path):
    """Also with dropout, which the audit must not meet and whose random numbers it must not take."""
    trainer = ours(tmp_path)
    with_dropout(trainer.model).register_forward_hook(lambda *_: torch.rand(1) and None)
    batch = micro_batch(ROWS, [1.0, -0.5, 0.7, 7.0])
    trainer.prepare_windows([batch])
    loss_and_gradients(trainer, batch)  # leaves gradients and metrics
    metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
    batch_before = {name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}
    before = state_of(trainer.model)
    rewards = trainer.reward_funcs
    assert audit_of(trainer, batch).passed
    assert_same_state(before, state_of(trainer.model))
    assert trainer._metrics["train"] == metrics and trainer.reward_funcs == rewards
    assert "_get_per_token_logps_and_entropies" not in vars(trainer)
    assert all(torch.equal(batch[name], value) for name, value in batch_before.items())


def test_a_training_with_the_audit_ends_in_the_weights_of_one_without(tmp_path):
    plain, audited = (played(tmp_path / str(on), audit_first_step=on, max_steps=1) for on in (False, True))
    assert plain.audit_report is None and audited.audit_report.passed
    for left, right in zip(plain.model.parameters(), audited.model.parameters(), strict=True):
        assert torch.equal(left, right)
    left, right = plain.state.log_history[0], audited.state.log_history[0]
    assert left.keys() == right.keys()
    assert all(left[name] == right[name] for name in left if "time" not in name and "latency" not in name)


def scored_now_and_then(completions, **_):
    return [None if index % 3 == 0 else float(index) for index, _ in enumerate(completions)]


@pytest.mark.parametrize(
    "options",
    [
        {"scale_rewards": "batch", "unfinished_policy": "drop", "gradient_accumulation_steps": 4},
        {"scale_rewards": "none", "mask_env_tokens": False},
        {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.5]},
    ],
    ids=["batch", "none", "normalize_then_sum"],
)
def test_rows_are_followed_whatever_makes_their_advantages(options, tmp_path):
    async def length(completion_ids, **_):
        return [float(len(ids) % 11) for ids in completion_ids]

    options = {"per_device_train_batch_size": 8 // options.get("gradient_accumulation_steps", 1), **options}
    trainer = played(tmp_path, reward=[length, scored_now_and_then], audit_first_step=True, **options)
    (together,) = [check for check in trainer.audit_report.checks if check.name == TOGETHER]
    assert together.passed and together.says == "8 rows followed from sampling to the micro-batches"
    asked_for = "observations are trained, as asked for" in str(trainer.audit_report)
    assert asked_for == (not trainer.args.mask_env_tokens)


def test_the_audit_of_a_file_leaves_the_model_as_it_was_and_reads_a_folder(tmp_path):
    played(tmp_path, max_steps=1)
    model = with_dropout(played(tmp_path / "other").model).train()
    model.model.layers[0].eval()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    before = state_of(model)
    report = audit(tmp_path / "rollouts", model=model, max_rows=4)
    assert report.passed and report.title == "audit of 4 of 8 saved rollouts, in the loss dapo"
    assert_same_state(before, state_of(model))
