"""One optimizer step is one step, however it is cut into micro-batches."""

import pytest
import torch
from torch import Tensor

from .scripted_training import ROWS, weights_after_the_step
from .tiny import tiny_model, tiny_tokenizer


def model_with_another_as_reference(folder):
    """The tiny model, whose KL is taken to one of other weights: to itself it would be 0."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, seed=1).save_pretrained(folder)
    model = tiny_model(tokenizer)
    model.config._name_or_path = str(folder)
    return model


def largest_change(after: dict[str, Tensor]) -> float:
    before = dict(tiny_model(tiny_tokenizer()).named_parameters())
    return max((after[name] - before[name]).abs().max().item() for name in after)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_eight_micro_batches_of_one_row_equal_one_of_eight(tmp_path, loss_type, beta):
    def step(**cut: int) -> dict[str, Tensor]:
        model = model_with_another_as_reference(tmp_path / "reference")
        return weights_after_the_step(tmp_path, model=model, loss_type=loss_type, beta=beta, **cut)

    whole = step(per_device_train_batch_size=ROWS)
    pieces = step(per_device_train_batch_size=1, gradient_accumulation_steps=ROWS)
    assert largest_change(whole) > 1e-3
    for name, weight in whole.items():
        torch.testing.assert_close(pieces[name], weight, rtol=0, atol=1e-6)
