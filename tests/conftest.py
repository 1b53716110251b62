"""Tool runners that are closed after the test, and a checkpoint that the experiments' tests share."""

import os
from pathlib import Path

import pytest
from filelock import FileLock

from envmask_trl.rollout.tools import ToolRunner


@pytest.fixture
def runner():
    runner = ToolRunner(timeout_s=20)
    yield runner
    runner.close()


@pytest.fixture
def hasty():
    runner = ToolRunner(timeout_s=0.5)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def quick_checkpoint(tmp_path_factory) -> Path:
    """The experiments' `--quick` checkpoint of seed 0, made by the worker that needs it first."""
    from recipes.experiments.task import make_checkpoint

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the workers' common one
    with FileLock(folder / "quick-checkpoint.lock"):
        return make_checkpoint("report", 0, folder / "quick-checkpoint", quick=True)
