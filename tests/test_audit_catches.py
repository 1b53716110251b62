"""Each fault that an audit is there for, planted in a trainer: the audit stops the training and says what is wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from envmask_trl import EnvMaskGRPOTrainer, load_rollouts
from envmask_trl.inspect.audit import audit
from envmask_trl.inspect.audit_checks import LEARNED, MASKED, NOT_LEARNED, SAME, SEEN
from envmask_trl.inspect.audit_report import AuditFailed
from envmask_trl.inspect.row_proof import TOGETHER
from envmask_trl.training import tree_attention

from . import scripted_training
from .scripted_training import PlaysRows, make_trainer


class MaskInverted(EnvMaskGRPOTrainer):
    def roll_out(self, prompts):
        out = super().roll_out(prompts)
        return {**out, "env_mask": [[1 - value for value in mask] for mask in out["env_mask"]]}


class MaskOneShort(EnvMaskGRPOTrainer):
    """TRL pads what is missing with a 1, so every value stands one token too early; a longest row would not pad."""

    def roll_out(self, prompts):
        out = super().roll_out(prompts)
        longest = max(map(len, out["env_mask"]))
        return {**out, "env_mask": [mask[len(mask) < longest :] for mask in out["env_mask"]]}


class OneEnvironmentTokenTrained(EnvMaskGRPOTrainer):
    def roll_out(self, prompts):
        out = super().roll_out(prompts)
        mask = next(mask for mask in out["env_mask"] if 0 in mask and 1 in mask)
        mask[mask.index(0)] = 1
        return out


class MaskOneShortInTheLastMicroBatch(EnvMaskGRPOTrainer):
    """The questions that take a forward and a backward are asked of another micro-batch."""

    options: ClassVar = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}

    def roll_out(self, prompts):
        out = super().roll_out(prompts)
        row = max(index for index, mask in enumerate(out["env_mask"]) if 0 in mask and 1 in mask)
        return {**out, "env_mask": [mask[index == row :] for index, mask in enumerate(out["env_mask"])]}


class OneTokenOff(EnvMaskGRPOTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        return super().compute_loss(
            model, {**inputs, "tool_mask": inputs["tool_mask"].roll(1, dims=1)}, *args, **kwargs
        )


class LossMaskAsAttentionMask(EnvMaskGRPOTrainer):
    """In the padded forward: that of trees takes no attention mask."""

    options: ClassVar = {"shared_prefix": False}

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        if self.trained is not None:
            attention_mask = attention_mask.clone()
            attention_mask[:, -logits_to_keep:] *= self.trained
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )


class PackedRowsSeeEachOther(EnvMaskGRPOTrainer):
    """All rows in one sequence, without a boundary in the attention between them."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        packed = input_ids[attention_mask.bool()].unsqueeze(0)
        next_logprobs = model(input_ids=packed, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        values = next_logprobs.gather(2, packed[:, 1:, None])[0, :, 0]
        logprobs = torch.zeros(input_ids.shape)
        logprobs[attention_mask.bool()] = torch.cat([values.new_zeros(1), values])
        logprobs = logprobs[:, -logits_to_keep:]
        return logprobs, torch.zeros_like(logprobs), None


class AdvantagesPermuted(EnvMaskGRPOTrainer):
    def after_scoring(self, batch):
        batch["advantages"] = batch["advantages"].roll(1)


class RewardsPermuted(EnvMaskGRPOTrainer):
    def adjust_rewards(self, rewards_per_func):
        return super().adjust_rewards(rewards_per_func.roll(1, dims=0))


class CompletionsPermuted(EnvMaskGRPOTrainer):
    """After the shuffle, in every micro-batch: the mask over them stays where it was."""

    def prepare_windows(self, batches):
        for batch in batches:
            for name in ("completion_ids", "completion_mask"):
                batch[name] = batch[name].roll(1, dims=0)
        super().prepare_windows(batches)


class OneRowTwice(EnvMaskGRPOTrainer):
    """And another not at all."""

    def prepare_windows(self, batches):
        for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages"):
            batches[0][name] = torch.cat([batches[0][name][:1], batches[0][name][:-1]])
        super().prepare_windows(batches)


class GroupsInterleaved(EnvMaskGRPOTrainer):
    """P1 P2 P3 P4 P1 P2 P3 P4, where the baseline is the mean of neighbours."""

    def _get_train_sampler(self, dataset=None) -> Iterator[int]:
        return [0, 1, 2, 3, 0, 1, 2, 3]


PLANTED = {  # and the checks that must find it
    MaskInverted: {NOT_LEARNED, LEARNED},
    MaskOneShort: {NOT_LEARNED, LEARNED},
    OneEnvironmentTokenTrained: {NOT_LEARNED},
    MaskOneShortInTheLastMicroBatch: {MASKED},
    OneTokenOff: {NOT_LEARNED, LEARNED},
    LossMaskAsAttentionMask: {SEEN, SAME},
    PackedRowsSeeEachOther: {SAME},
    AdvantagesPermuted: {TOGETHER},
    RewardsPermuted: {TOGETHER},
    CompletionsPermuted: {TOGETHER},
    OneRowTwice: {TOGETHER},
}


@pytest.fixture(scope="module", autouse=True)
def shorter_rows():
    """The scripts need 130 tokens at most, but for the one that is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted_training, "MAX_COMPLETION_LENGTH", 130)
        yield


def audited_training(cls, tmp_path, monkeypatch):
    monkeypatch.setattr(scripted_training, "EnvMaskGRPOTrainer", cls)
    trainer = make_trainer(tmp_path, audit_first_step=True, **vars(cls).get("options", {}))
    trainer.sampler = PlaysRows(trainer)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    return trainer, before


@pytest.mark.parametrize("audit", [True, False])
def test_rollouts_of_a_prompt_that_are_no_neighbours_are_refused_unplayed(audit, tmp_path, monkeypatch):
    """P1 P2 P1 P2: each row's baseline would be the mean of another prompt's rewards."""
    monkeypatch.setattr(scripted_training, "EnvMaskGRPOTrainer", GroupsInterleaved)
    trainer = make_trainer(tmp_path, audit_first_step=audit)
    with pytest.raises(ValueError, match="rows 0 and 1 are of one group of 2 rollouts but have other prompts"):
        trainer.train()
    assert trainer.trajectories == []


@pytest.mark.parametrize("fault", PLANTED, ids=lambda cls: cls.__name__)
def test_a_planted_fault_stops_the_training_before_the_first_update(fault, tmp_path, monkeypatch):
    trainer, before = audited_training(fault, tmp_path, monkeypatch)
    with pytest.raises(AuditFailed) as failure:
        trainer.train()
    found = {check.name for check in failure.value.report.faults}
    assert found >= PLANTED[fault], failure.value.report
    assert all(torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())


def test_branches_of_a_token_tree_that_see_what_they_should_not_stop_the_training(tmp_path, monkeypatch):
    """Also when the shared forward's check of itself says nothing."""
    bundle_of = tree_attention.Bundle.of

    def leaky(*args):
        bundle = bundle_of(*args)
        return replace(bundle, visible=None if bundle.visible is None else torch.ones_like(bundle.visible))

    monkeypatch.setattr(tree_attention.Bundle, "of", leaky)
    trainer, _ = audited_training(EnvMaskGRPOTrainer, tmp_path, monkeypatch)
    monkeypatch.setattr("envmask_trl.training.shared_prefix.same_logprobs", lambda *args: True)
    with pytest.raises(AuditFailed) as failure:
        trainer.train()
    assert SAME in {check.name for check in failure.value.report.faults}


def test_the_same_trainer_without_a_fault_trains(tmp_path, monkeypatch):
    trainer, before = audited_training(EnvMaskGRPOTrainer, tmp_path, monkeypatch)
    trainer.train()
    assert trainer.audit_report.passed
    assert not any(check.passed is None for check in trainer.audit_report.checks)
    assert any(not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())


def inverted(rows):
    for row in rows:
        row["loss_mask"] = [1 - value for value in row["loss_mask"]]


def one_environment_token(rows):
    row = next(row for row in rows if "env" in row["sources"])
    row["loss_mask"][row["sources"].index("env")] = 1


def one_off(rows):
    for row in rows:
        row["loss_mask"] = [*row["loss_mask"][1:], 1]


def permuted(rows):
    advantages = [row["advantage"] for row in rows]
    for row, advantage in zip(rows, [*advantages[1:], advantages[0]], strict=True):
        row["advantage"] = advantage


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The model of a training and its rollouts, as they stand in the file."""
    folder = tmp_path_factory.mktemp("saved")
    trainer = make_trainer(folder)
    trainer.sampler = PlaysRows(trainer)
    trainer.train()
    return trainer.model, folder / "rollouts"


def test_saved_rollouts_without_a_fault_pass(saved):
    model, path = saved
    report = audit(path, model=model)
    assert report.passed and [check.name for check in report.checks if check.passed is None] == [SAME]


@pytest.mark.parametrize(
    ("plant", "name"),
    [(inverted, NOT_LEARNED), (one_environment_token, NOT_LEARNED), (one_off, LEARNED), (permuted, TOGETHER)],
)
def test_a_fault_in_saved_rollouts_is_found(plant, name, saved):
    model, path = saved
    rows = load_rollouts(path)
    plant(rows)
    assert name in {check.name for check in audit(rows, model=model).faults}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_advantage_that_is_no_finite_number_is_named_by_its_row(value, saved):
    model, path = saved
    rows = load_rollouts(path)
    rows[2]["advantage"] = value
    assert f"row 2 has the advantage {value}, expected a finite number" in str(audit(rows, model=model))


def test_a_mask_in_a_file_that_is_too_short_is_named_by_its_row(saved):
    model, path = saved
    rows = load_rollouts(path)
    rows[3]["loss_mask"].pop()
    with pytest.raises(ValueError, match="row 3: loss_mask has"):
        audit(rows, model=model)


def test_a_mask_of_a_row_that_is_not_forwarded_is_compared_too(saved):
    model, path = saved
    rows = load_rollouts(path)
    report = audit(rows, model=model, max_rows=1)
    assert report.passed and f"{MASKED}: {len(rows)} rows, " in str(report)
    one_environment_token(rows[1:])
    (fault,) = audit(rows, model=model, max_rows=1).faults
    assert fault.name == MASKED and "the first is token " in fault.says and "written by env" in fault.says


def test_an_id_that_the_model_has_no_embedding_for_is_named_before_it_is_looked_up(saved):
    """On an accelerator a look-up beyond the embedding ends the process."""
    model, path = saved
    rows, known = load_rollouts(path), model.get_input_embeddings().num_embeddings
    rows[2]["prompt_ids"][0] = known
    with pytest.raises(ValueError, match=rf"row 2 has the token id {known}, .* has {known} rows .*; give the model"):
        audit(rows, model=model, max_rows=1)
