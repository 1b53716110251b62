"""A run goes on from the last checkpoint that was saved to its end, and says so where there is none."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from envmask_trl import checkpoint_to_resume


def saved(run: Path, step: int) -> Path:
    """A checkpoint with the files that say whether it is whole."""
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    save_file({"weight": torch.zeros(4)}, folder / "model.safetensors")
    torch.save({"step": step}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return folder


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_nothing_asked_for_is_nothing_found(tmp_path):
    saved(tmp_path, 2)
    assert checkpoint_to_resume(None, str(tmp_path)) is None and checkpoint_to_resume(False, str(tmp_path)) is None


def test_the_last_checkpoint_is_the_one_of_most_steps_not_the_last_by_name(tmp_path):
    saved(tmp_path, 9), saved(tmp_path, 10), (tmp_path / "checkpoint-best").mkdir()
    assert checkpoint_to_resume(True, str(tmp_path)) == str(tmp_path / "checkpoint-10")


def test_a_checkpoint_whose_saving_was_killed_is_passed_over_and_refused_by_name(tmp_path):
    whole, killed = saved(tmp_path, 2), saved(tmp_path, 4)
    (killed / "trainer_state.json").unlink()
    assert checkpoint_to_resume(True, str(tmp_path)) == str(whole)
    with pytest.raises(ValueError, match=r"checkpoint-4 cannot be resumed: trainer_state.json is missing, which is"):
        checkpoint_to_resume(str(killed), str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_half_a_file_is_passed_over(tmp_path, name):
    whole, broken = saved(tmp_path, 2), saved(tmp_path, 4)
    halve(broken / name)
    assert checkpoint_to_resume(True, str(tmp_path)) == str(whole)
    with pytest.raises(ValueError, match=f"checkpoint-4 cannot be resumed: {name} is not whole; choose another"):
        checkpoint_to_resume(broken, str(tmp_path))


def test_where_no_checkpoint_is_whole_the_sentence_says_how_many_there_are(tmp_path):
    with pytest.raises(ValueError, match="has no checkpoint to go on from, found none; leave it out"):
        checkpoint_to_resume(True, str(tmp_path / "never"))
    halve(saved(tmp_path, 4) / "optimizer.pt")
    with pytest.raises(ValueError, match="found only 1 that were not saved to their end"):
        checkpoint_to_resume(True, str(tmp_path))


def test_whole_weights_never_go_into_an_adapter_nor_an_adapter_into_a_whole_model(tmp_path):
    """Transformers warns of missing keys, loads nothing and trains on from the base model's weights."""
    whole, adapter = saved(tmp_path, 2), saved(tmp_path, 4)
    (adapter / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text("{}")
    assert checkpoint_to_resume(whole, None, has_adapter=False) == str(whole)
    assert checkpoint_to_resume(True, str(tmp_path), has_adapter=True) == str(adapter)
    with pytest.raises(ValueError, match="checkpoint-2 has a whole model, but an adapter is trained; leave peft"):
        checkpoint_to_resume(whole, None, has_adapter=True)
    with pytest.raises(ValueError, match="checkpoint-4 has an adapter, but a whole model is trained; pass its peft"):
        checkpoint_to_resume(adapter, None, has_adapter=False)
