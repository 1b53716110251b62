"""Rows moved between the micro-batches of an optimizer step, and padding cut: the numbers stay what they were."""

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoConfig, GPTNeoForCausalLM
from trl.trainer.utils import add_fused_lm_head

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer
from envmask_trl.training._trl import only_labelled_positions_scored
from envmask_trl.training.micro_batches import arrange, depends_on_split, forward_cut, padded_share

from .tiny_for_loss import LOSS_TYPES, loss_and_gradients, micro_batch, small_model, trainer_of

FIRST, SECOND = [1, 2, 3, 4], [5, 6]
ROWS = [  # as TRL shuffles them: two optimizer steps of two micro-batches of two rows
    (FIRST, [10, 11, 19], [1, 1, 1]),
    (SECOND, [12, 20, 21, 13, 19], [1, 0, 0, 1, 1]),
    (FIRST, [10, 14, 19], [1, 1, 1]),
    (SECOND, [12, 15], [1, 1]),
    (SECOND, [16, 19], [1, 1]),
    (FIRST, [17], [1]),
    (SECOND, [16, 18, 19], [1, 1, 1]),
    (FIRST, [24], [0]),
]
ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.0, 0.75, 3.0, -2.0]


def micro_batches(rows=ROWS):
    """Micro-batches of two rows, all as wide as the longest rows of all."""
    torch.manual_seed(0)
    old = -3.4 + 0.2 * torch.randn(len(rows), 5)
    whole = micro_batch(rows, ADVANTAGES[: len(rows)], old_per_token_logps=old)
    count = whole.pop("num_items_in_batch")
    return [
        {name: values[start : start + 2] for name, values in whole.items()} | {"num_items_in_batch": count}
        for start in range(0, len(rows), 2)
    ]


def arranged(batches, window, *, as_trees):
    arrange(batches, window, as_trees=as_trees)
    return batches


def advantages(batches):
    return [batch["advantages"].tolist() for batch in batches]


def test_rows_that_begin_alike_come_together_and_stay_in_their_optimizer_step():
    moved = arranged(micro_batches(), 2, as_trees=True)
    assert advantages(moved) == [[1.0, 0.25], [2.0, -0.5], [0.75, -2.0], [3.0, -1.0]]
    assert advantages(arranged(micro_batches(), 1, as_trees=True)) == advantages(micro_batches())


def test_rows_forwarded_apart_come_together_by_length():
    by_length = arranged(micro_batches(), 2, as_trees=False)  # lengths 7 7 7 4, then 4 5 5 5
    lengths = [(batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)).tolist() for batch in by_length]
    assert lengths == [[4, 7], [7, 7], [4, 5], [5, 5]]


def test_every_column_of_a_row_moves_with_it():
    rows = {}
    for batches in (micro_batches(), arranged(micro_batches(), 4, as_trees=True)):
        for batch in batches:
            for place, advantage in enumerate(batch["advantages"].tolist()):
                found = {name: values[place].tolist() for name, values in batch.items() if values.dim()}
                assert rows.setdefault(advantage, found) == found and batch["num_items_in_batch"].dim() == 0
    assert len(rows) == len(ROWS)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_loss_and_the_gradients_of_an_optimizer_step_stay_the_same(loss_type, tmp_path):
    level = {"importance_sampling_level": "sequence"} if loss_type == "luspo" else {}
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "loss_type": loss_type, **level}
    trainer = trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, **options)
    sums, orders = [], []
    for trainer.args.balance_micro_batches in (False, True):
        batches = micro_batches()
        trainer.prepare_windows(batches)
        orders.append(advantages(batches))
        parts = [loss_and_gradients(trainer, batch) for batch in batches]
        sums.append((sum(loss for loss, _ in parts), {n: sum(g[n] for _, g in parts) for n in parts[0][1]}))
    assert (orders[0] != orders[1]) == (loss_type != "bnpo")
    assert sums[1][0] == pytest.approx(sums[0][0], abs=1e-6) and sums[0][0] != 0.0
    for name, gradient in sums[0][1].items():
        assert (sums[1][1][name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7, name


@pytest.mark.parametrize("option", [{"top_entropy_quantile": 0.5}, {"entropy_coef": 0.1}, {"loss_type": "bnpo"}])
def test_rows_stay_where_a_micro_batch_has_a_mean_of_its_own(option, tmp_path):
    assert depends_on_split(trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, **option))
    assert not depends_on_split(trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path))


def inputs_of(batch):
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, : batch["prompt_ids"].size(1)] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "fused_lm_head": True}


def test_cutting_padding_changes_no_number_and_forwards_less():
    model, shapes = small_model(), []
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    model.model.register_forward_pre_hook(lambda m, a, k: shapes.append(k["input_ids"].shape), with_kwargs=True)
    batch = inputs_of(micro_batches([ROWS[1], ROWS[0], ROWS[3], ROWS[4]])[1])  # prompts 2 of 4, completions 2 of 5
    with only_labelled_positions_scored(), torch.no_grad():
        expected, found = model(**batch), forward_cut(model, **batch)
    assert shapes == [(2, 9), (2, 4)]
    torch.testing.assert_close(found.log_probs, expected.log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy, expected.entropy, atol=1e-5, rtol=0)
    assert found.log_probs.abs().sum() > 0


COUNTING_COLUMNS = {  # by learned positions, and by a window that is as wide as columns are apart
    "learned positions": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)),
    "a window": lambda: GPTNeoForCausalLM(
        GPTNeoConfig(vocab_size=32, hidden_size=16, num_heads=2, num_layers=1, attention_types=[[["local"], 1]],
                     window_size=3, max_position_embeddings=32)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", COUNTING_COLUMNS)
def test_padding_before_a_row_does_not_move_its_positions(what):
    torch.manual_seed(0)
    model = COUNTING_COLUMNS[what]().eval()
    for weight in model.parameters():
        weight.data.mul_(10)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    batch = inputs_of(micro_batches([ROWS[0], ROWS[1], ROWS[3], ROWS[2]])[0])  # SECOND stands two columns further right
    with only_labelled_positions_scored(), torch.no_grad():
        found = forward_cut(model, **batch).log_probs
        ids = torch.tensor([SECOND + ROWS[1][1]])
        alone = model(ids).logits.log_softmax(-1)[0, 1:-1].gather(1, ids[0, 2:].unsqueeze(1)).squeeze(1)
        as_padded = model(**batch).log_probs
    torch.testing.assert_close(found[1, 3:], alone, atol=1e-5, rtol=1e-6)
    assert (as_padded[1, 3:] - alone).abs().max() > 0.1, "the model must count columns for this test to say something"


def test_tokens_that_prompt_learning_puts_before_a_row_do_not_move_its_numbers():
    model = small_model()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    tuned = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    batch = inputs_of(micro_batches()[0])
    with only_labelled_positions_scored(), torch.no_grad():
        found = forward_cut(tuned, **batch).log_probs
        ids = torch.tensor([SECOND + ROWS[1][1]])
        alone = tuned(ids).logits.log_softmax(-1)[0, 3 + 1 : -1].gather(1, ids[0, 2:].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found[1, 3:], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shared_prefix", [True, False])
def test_the_share_of_padding_is_logged(shared_prefix, tmp_path):
    trainer = trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, shared_prefix=shared_prefix)
    batch = micro_batches()[1]  # prompts of 4 and 2, completions of 3 and 2: 11 of 2 x 7
    trainer.prepare_windows([batch])
    trainer.compute_loss(trainer.model, batch)
    share = 0.0 if shared_prefix else 3 / 14
    assert trainer._metrics["train"]["env_mask/padded_share"] == pytest.approx([share])
    assert padded_share(inputs_of(batch)["attention_mask"]) == pytest.approx(3 / 14)
