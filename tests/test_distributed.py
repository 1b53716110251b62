"""Two processes: nobody waits for ever, each scores its own rollouts, and their step is the step of one process."""

import json

import pytest
import torch

from envmask_trl import load_rollouts

from .launching import run
from .scripted_training import CALLS, ROWS, UNFINISHED, length, weights_after_the_step

PROCESSES = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote down; a hang ends in a TimeoutExpired."""
    folder = tmp_path_factory.mktemp("distributed")
    status, output = run("-m", "tests.distributed_worker", str(folder), cwd=folder, launcher="two processes")
    assert status == 0, output
    return folder


def notes(folder, scenario: str) -> list[dict]:
    return [json.loads((folder / f"{scenario}-{process}.json").read_text()) for process in range(PROCESSES)]


def test_processes_with_unequal_numbers_of_turns_play_equally_many_rounds(folder):
    first, second = notes(folder, "grpo")
    turns = [seen["turns"] for note in (first, second) for seen in note["seen"]]
    assert turns == [calls + 1 for calls in CALLS]  # at most 2 in one process, 5 in the other
    assert first["rounds"] == second["rounds"] == 5


@pytest.mark.parametrize("scenario", ["grpo", "generate"])
def test_each_process_scores_its_own_rollouts(folder, scenario):
    scored = [seen for note in notes(folder, scenario) for seen in note["seen"]]
    assert [seen["row"] for seen in scored] == [0, 0, 1, 1, 2, 2, 3, 3]
    for seen in scored:
        assert seen["prompt"] == seen["prompt_ids"] == [seen["row"]]
        assert set(seen["completion"]) <= {seen["row"]}  # its tools and, in a script, the answer name the row
    assert sum(len(seen["completion"]) for seen in scored) > ROWS / 2


@pytest.mark.parametrize("scenario", ["grpo", "generate"])
def test_each_process_saves_its_own_rewards(folder, scenario):
    for process in range(PROCESSES):
        rollouts = load_rollouts(folder / scenario / "rollouts" / f"step-000000-process-{process}.parquet")
        assert len(rollouts) == ROWS // PROCESSES
        for rollout in rollouts:
            assert [rollout["rewards"]["notes"]] == length([rollout["completion_ids"]])


@pytest.mark.parametrize("scenario", ["grpo", "dapo", "generate"])
def test_each_process_closes_every_environment_that_it_opened(folder, scenario):
    for note in notes(folder, scenario):
        assert note["rooms"] == [[1, 1]] * (ROWS // PROCESSES)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_the_step_of_two_processes_equals_the_step_of_one(folder, tmp_path, loss_type):
    assert UNFINISHED >= ROWS // PROCESSES  # the row without a trained token is in the second process only
    together = torch.load(folder / f"{loss_type}.pt")
    alone = weights_after_the_step(tmp_path, loss_type=loss_type)
    assert len(together) == len(alone)
    for name, weight in alone.items():
        torch.testing.assert_close(together[name.removeprefix("module.")], weight, rtol=0, atol=1e-6)
