"""On a batch without environment tokens, every loss and every gradient is TRL's, bit for bit or nearly so."""

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer
from envmask_trl.training.config import OF_TRL

from .tiny_for_loss import LOSS_TYPES, loss_and_gradients, masked_loss_and_gradients, micro_batch, trainer_of

ROWS = [([1, 2], [10, 11, 19], [1, 1, 1]), ([3], [12, 13, 14, 15, 19], [1] * 5), ([4, 5, 6], [16], [1])]


def batch_with_everything():
    torch.manual_seed(1)
    return micro_batch(
        ROWS,
        [1.0, -0.5, 0.25],
        old_per_token_logps=-3.4 + 0.2 * torch.randn(3, 5),
        ref_per_token_logps=-3.5 + 0.2 * torch.randn(3, 5),
    )


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_and_gradients_equal_those_of_trl(loss_type, beta, tmp_path):
    options = {"loss_type": loss_type, "beta": beta}
    if loss_type == "luspo":
        options["importance_sampling_level"] = "sequence"
    their_trainer = trainer_of(GRPOTrainer, GRPOConfig, tmp_path, **options)
    our_trainer = trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, **options)
    trees = our_trainer.tree_forward
    their_loss, their_gradients = loss_and_gradients(their_trainer, batch_with_everything())
    for our_trainer.tree_forward, tolerance in ((None, 1e-7), (trees, 1e-6)):  # rows apart, and as trees
        our_loss, our_gradients = masked_loss_and_gradients(our_trainer, batch_with_everything())
        assert our_loss == pytest.approx(their_loss, abs=tolerance)
        assert our_loss != 0.0
        for name, gradient in their_gradients.items():
            torch.testing.assert_close(our_gradients[name], gradient, atol=tolerance, rtol=1e-5, msg=name)
    assert trees.agrees


def test_every_loss_type_that_trl_knows_is_compared(tmp_path):
    assert set(LOSS_TYPES) == set(OF_TRL["loss_type"])  # which the contract test reads off TRL's source
    trainer = trainer_of(GRPOTrainer, GRPOConfig, tmp_path)
    trainer.loss_type = "no such loss"
    with pytest.raises(ValueError, match="Unknown loss type"):
        trainer.compute_loss(trainer.model, batch_with_everything())
