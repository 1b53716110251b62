"""The engines behind the trainer give each prompt its own turns back. Run for real: `generate`, continuous batching."""

import pytest

from envmask_trl import TransformersSampler, run_rollouts

from .distributed_worker import looks_often
from .scripted_training import Room, make_trainer
from .tiny import impatient_model, tiny_tokenizer

ENGINES = {
    "generate": {},
    "continuous": {
        "use_transformers_continuous_batching": True,
        "transformers_continuous_batching_config": {"num_blocks": 256, "max_batch_tokens": 512},
    },
}


@pytest.fixture(autouse=True)
def no_rooms():
    Room.made.clear()


def trainer_with(engine: str, output_dir, **options):
    """A trainer of 16 rollouts whose noisy turns are read as calls about every second time."""
    options |= ENGINES[engine] | {"questions": 8, "per_device_train_batch_size": 16, "max_turn_tokens": 8}
    return make_trainer(output_dir, model=impatient_model(tiny_tokenizer()), parser=looks_often, **options)


@pytest.mark.parametrize("gradient_checkpointing", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_with_tools_trains(tmp_path, engine, gradient_checkpointing):
    trainer = trainer_with(engine, tmp_path, gradient_checkpointing=gradient_checkpointing)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    after = list(trainer.model.parameters())
    assert any((old != new).any() for old, new in zip(before, after, strict=True))
    assert all(weight.isfinite().all() for weight in after)
    assert trainer.state.log_history[0]["tools/call_frequency"] > 0
    assert [(room.opened, room.closed) for room in Room.made] == [(1, 1)] * 16


@pytest.mark.parametrize("engine", ENGINES)
def test_greedy_rollouts_are_those_of_the_plain_sampler_row_by_row(tmp_path, engine):
    trainer = trainer_with(engine, tmp_path, top_k=1)
    trainer.train()
    expected = run_rollouts(
        [trajectory.prompt for trajectory in trainer.trajectories],
        tokenizer=trainer.processing_class,
        sampler=TransformersSampler(impatient_model(tiny_tokenizer()), tiny_tokenizer(), do_sample=False),
        environments=trainer.environments,
        limits=trainer.args.limits(max_total_length=512),
        parser=looks_often,
        encoder=trainer.encoder,
        stop_token_ids=trainer.eos_token_ids,
    )
    found = trainer.trajectories
    assert len({trajectory.prompt_ids for trajectory in found}) == 8
    assert len({trajectory.completion_ids for trajectory in found}) > 4
    assert [t.completion_ids for t in found] == [t.completion_ids for t in expected]
    assert [t.env_mask for t in found] == [t.env_mask for t in expected]
