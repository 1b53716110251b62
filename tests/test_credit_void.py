"""What is left out of the loss and of the baseline: rollouts that infrastructure ended, and that never made a call."""

import pytest

from envmask_trl import CallStatus, RolloutAborted, Segment, Source, StopReason, ToolResult, Trajectory
from envmask_trl.training.left_out import is_void, left_out

from .test_credit_training import by_turn, trained
from .tiny import answer, call

UNREADABLE = "<tool_call>\n{broken\n</tool_call><|im_end|>"
SCRIPTS = [
    [call("add", a=99, b=1), answer("1")],  # the infrastructure fails
    [UNREADABLE, answer("2")],  # its only call cannot be read
    [call("add", a=1, b=1), answer("2")],
    [answer("2")],
]
REWARDS = [4.0, 0.0, 3.0, 1.0]


def add(a: int, b: int) -> str:
    """The sum.

    Args:
        a: A number.
        b: Another number.
    """
    if a == 99:
        raise RolloutAborted("no machine")
    return str(a + b)


def reward(completions, **_):
    return REWARDS


@pytest.mark.parametrize(
    ("policy", "trained_rows", "advantages"),
    [
        ("train", [True, True, True, True], [2.0, -2.0, 1.0, -1.0]),  # baseline (4 + 0 + 3 + 1) / 4 = 2
        ("mask_loss", [False, False, True, True], [2.0, -2.0, 1.0, -1.0]),  # the same baseline
        ("drop", [False, False, True, True], [0.0, 0.0, 1.0, -1.0]),  # baseline (3 + 1) / 2 = 2
    ],
)
def test_void_rollouts_are_used_as_the_policy_says(policy, trained_rows, advantages, tmp_path):
    """I-102: G = 4, one rollout with an infrastructure error, one with only calls that cannot be read."""
    trainer, batch = trained(tmp_path, reward, SCRIPTS, tools=[add], void_policy=policy, scale_rewards="none")
    assert (batch["completion_mask"] * batch["tool_mask"]).any(dim=1).tolist() == trained_rows
    assert batch["advantages"].tolist() == pytest.approx(advantages)
    assert trainer.trajectories[0].stop_reason is StopReason.ENV_ERROR


def test_a_dropped_rollout_changes_the_baseline(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "REWARDS", [9.0, 9.0, 3.0, 2.0])
    _, batch = trained(tmp_path, reward, SCRIPTS, tools=[add], void_policy="drop", scale_rewards="none")
    assert batch["advantages"].tolist() == pytest.approx([0.0, 0.0, 0.5, -0.5])  # against 2.5, not 5.75


def test_a_dropped_rollout_is_no_turn_of_the_others_baseline(tmp_path):
    trainer, batch = trained(
        tmp_path,
        reward,
        SCRIPTS,
        tools=[add],
        void_policy="drop",
        scale_rewards="none",
        credit="turn",
        audit_first_step=True,
    )
    assert by_turn(trainer, batch) == [[0.0], [0.0, 0.0], [1.0, 1.0], [-1.0]]
    assert trainer.audit_report.passed


def rollout(*statuses, reason=StopReason.ANSWERED):
    results = tuple(ToolResult(f"call{n}", "add", "", status, 0.1) for n, status in enumerate(statuses))
    segments = (Segment(Source.PROMPT, (1,)), Segment(Source.MODEL, (10, 19)))
    return Trajectory(segments, reason, tool_results=results)


@pytest.mark.parametrize(
    ("trajectory", "void"),
    [
        (rollout(), False),
        (rollout(reason=StopReason.LENGTH), False),
        (rollout(reason=StopReason.ENV_ERROR), True),
        (rollout(CallStatus.OK, reason=StopReason.MALFORMED), True),
        (rollout(CallStatus.TIMEOUT, CallStatus.TIMEOUT), True),
        (rollout(CallStatus.TIMEOUT, CallStatus.OK), False),
        (rollout(CallStatus.MALFORMED), True),
        (rollout(CallStatus.MALFORMED, CallStatus.OK), False),
        (rollout(CallStatus.ERROR), False),  # a tool that raises tells the model something
        (rollout(CallStatus.BAD_ARGUMENTS, CallStatus.UNKNOWN_TOOL), False),
    ],
)
def test_what_is_void(trajectory, void):
    assert is_void(trajectory) is void


def test_the_stricter_policy_holds_for_a_rollout_that_is_unfinished_and_void():
    rows = [rollout(), rollout(reason=StopReason.LENGTH), rollout(reason=StopReason.ENV_ERROR)]
    unfinished = [row.unfinished for row in rows]
    assert left_out(rows, unfinished, "mask_loss", "drop") == {
        "no_loss": [False, True, True],
        "dropped": [False, False, True],
    }
    assert left_out(rows, unfinished, "drop", "train")["dropped"] == [False, True, True]
    assert left_out(rows, unfinished, "train", "mask_loss")["no_loss"] == [False, False, True]
