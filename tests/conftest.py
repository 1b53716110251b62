"""Tool runners that are closed after the test."""

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
