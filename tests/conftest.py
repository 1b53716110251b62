"""One thread for each process of the tests, and tool runners that are closed after the test."""

import os

# Before torch is imported: the matrices are tiny, and workers of pytest run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

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
