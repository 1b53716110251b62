"""The chain from pretraining to search GRPO runs, and says so when it does not."""

from types import SimpleNamespace

import pytest
import torch

from recipes.models import tiny
from recipes.smoke import Preset, main, run, written


def test_every_phase_trains_and_has_its_time_and_memory():
    table = main(Preset(tiny, steps=1, sft_steps=2, batch_size=4, generations=2, turn_tokens=12))
    assert [row["phase"] for row in table] == [
        *("pretraining", "sft", "dpo", "single turn grpo", "tool grpo", "search grpo")
    ]
    assert all(row["seconds"] > 0 and row["mib"] > 100 for row in table)
    assert [row["calls"] is None for row in table] == [True] * 4 + [False] * 2
    assert written(table).splitlines()[-1].startswith("all ")


@pytest.mark.parametrize(
    ("loss", "moves", "message"),
    [(float("nan"), True, r"logged the losses \[nan\]"), (1.0, False, "no weight has moved")],
)
def test_a_phase_that_learned_nothing_is_an_error(loss, moves, message):
    weight = torch.zeros(1)
    trainer = SimpleNamespace(
        model=SimpleNamespace(parameters=lambda: [weight]),
        state=SimpleNamespace(log_history=[{"loss": loss}]),
        remove_callback=lambda callback: None,
        train=lambda: weight.add_(float(moves)),
    )
    with pytest.raises(RuntimeError, match=message):
        run(trainer)
