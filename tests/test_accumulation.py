"""One optimizer step is one step, however it is cut into micro-batches."""

import pytest
import torch

from .scripted_training import ROWS, UNFINISHED, make_trainer, weights_after_the_step
from .tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def untrained():
    return dict(tiny_model(tiny_tokenizer()).named_parameters())


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_eight_micro_batches_of_one_row_equal_one_of_eight(tmp_path, untrained, loss_type, beta):
    options = {"loss_type": loss_type, "beta": beta}
    whole = weights_after_the_step(tmp_path / "whole", **options)
    pieces = weights_after_the_step(
        tmp_path / "pieces", per_device_train_batch_size=1, gradient_accumulation_steps=ROWS, **options
    )
    assert max((whole[name] - untrained[name]).abs().max() for name in whole) > 1e-3
    for name, weight in whole.items():
        torch.testing.assert_close(pieces[name], weight, rtol=0, atol=1e-6)
