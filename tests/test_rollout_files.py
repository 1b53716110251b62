"""No rollout is written over another: of an earlier run, or of another generation of the same step."""

from pathlib import Path

import pytest

from envmask_trl import audit, load_rollouts
from envmask_trl.training.rollout_files import RolloutFiles

from .tiny import answer
from .trained_scripts import make_trainer


def half(completions, **_):
    return [0.0, 1.0] * (len(completions) // 2)


def train(folder, text, **options):
    make_trainer(folder, half, [[answer(text)]] * 4, **options).train()


def test_a_new_run_leaves_the_rollouts_of_an_earlier_one(tmp_path):
    for text in ("first", "second", "third"):
        train(tmp_path, text)
    kept = {name: load_rollouts(tmp_path / name) for name in ("rollouts-1", "rollouts-2", "rollouts")}
    said = {name: rows[0]["messages"][0]["content"] for name, rows in kept.items()}
    assert said == {"rollouts-1": "first", "rollouts-2": "second", "rollouts": "third"}
    assert all(len(rows) == 4 for rows in kept.values())


def test_a_step_of_several_generations_keeps_them_all(tmp_path):
    train(tmp_path, "one", gradient_accumulation_steps=2, steps_per_generation=1)
    saved = load_rollouts(tmp_path / "rollouts")
    assert len(saved) == 8 and sorted(row["group"] for row in saved) == [0] * 4 + [1] * 4


def test_the_number_of_a_group_is_the_same_in_the_files_of_all_processes():
    first, second = (RolloutFiles(Path("rollouts"), process=process) for process in range(2))
    numbered = {"step": 3, "processes": 2, "group_size": 4}
    assert first.groups(6, **numbered) == [0, 0, 0, 0, 1, 1] and second.groups(6, **numbered) == [1, 1, 2, 2, 2, 2]
    for files in (first, second):
        files.next_path(step=3)
    assert first.groups(6, **numbered) == [3, 3, 3, 3, 4, 4] and first.groups(6, **numbered | {"step": 4})[0] == 0


def test_a_resumed_run_writes_a_step_under_the_name_it_had(tmp_path):
    files = RolloutFiles(tmp_path / "rollouts", process=1)
    assert [files.next_path(step=3).name for _ in range(2)] == [
        *("step-000003-process-1.parquet", "step-000003-process-1-1.parquet")
    ]
    assert RolloutFiles(tmp_path / "rollouts", process=1).next_path(step=3).name == "step-000003-process-1.parquet"
    assert files.set_earlier_aside() is None


def test_a_damaged_file_is_named_with_what_to_do(tmp_path):
    damaged = tmp_path / "step-000000-process-0.parquet"
    damaged.write_bytes(b"PAR1 cut off")
    for read in (load_rollouts, lambda path: audit(path, model=None)):
        for path in (damaged, tmp_path):
            with pytest.raises(
                ValueError, match=r"step-000000-process-0.parquet cannot be read as parquet \(.*: copy it"
            ):
                read(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.parquet does not exist; expected a parquet file"):
        load_rollouts(tmp_path / "nowhere.parquet")
