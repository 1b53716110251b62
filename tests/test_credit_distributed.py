"""Two processes with one group between them: turns are compared with those of the other process, too."""

import pytest
import torch

from .credit_worker import CREDITS, step
from .launching import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote down; a hang ends in a TimeoutExpired."""
    folder = tmp_path_factory.mktemp("credit")
    status, output = run("-m", "tests.credit_worker", str(folder), cwd=folder, launcher="two processes")
    assert status == 0, output
    return folder


@pytest.mark.parametrize("credit", CREDITS)
def test_the_step_of_two_processes_equals_the_step_of_one(credit, folder, tmp_path):
    together, alone = torch.load(folder / f"{credit}.pt"), step(credit, tmp_path, processes=1)
    assert len(together) == len(alone)
    for name, weight in alone.items():
        torch.testing.assert_close(together[name.removeprefix("module.")], weight, rtol=0, atol=1e-6)
