"""Which rollouts are left out of the loss, or of their group's baseline too. Knows trajectories: no tensors.

policy       loss    mean and deviation of the group
train        yes     yes
mask_loss    no      yes, with the reward it got
drop         no      no: those of the other rollouts
"""

from collections.abc import Sequence
from typing import Literal, get_args

from ..trajectory import CallStatus, StopReason, Trajectory

RolloutPolicy = Literal["train", "mask_loss", "drop"]
POLICIES: tuple[str, ...] = get_args(RolloutPolicy)  # each leaves out more than the one before
INFRASTRUCTURE = (CallStatus.TIMEOUT, CallStatus.ABORTED)


def left_out(
    trajectories: Sequence[Trajectory], unfinished: Sequence[bool], unfinished_policy: str, void_policy: str
) -> dict[str, list[bool]]:
    """Columns `no_loss` and `dropped`; for a rollout that is unfinished and void, the stricter policy holds.

    Example:
        left_out([cut, failed], [True, True], "mask_loss", "drop")
        {"no_loss": [True, True], "dropped": [False, True]}
    """
    strictness = [
        max(
            POLICIES.index(unfinished_policy) if ended_outside else 0,
            POLICIES.index(void_policy) if is_void(trajectory) else 0,
        )
        for trajectory, ended_outside in zip(trajectories, unfinished, strict=True)
    ]
    return {
        "no_loss": [found >= POLICIES.index("mask_loss") for found in strictness],
        "dropped": [found >= POLICIES.index("drop") for found in strictness],
    }


def is_void(trajectory: Trajectory) -> bool:
    """Whether nothing can be learned of the task from a rollout.

    Infrastructure failed: its environment broke, or it called and no call came back before its deadline. Or nothing
    that it called could be read: it was given up for that, or every one of its calls was malformed.
    """
    if trajectory.stop_reason in (StopReason.ENV_ERROR, StopReason.MALFORMED):
        return True
    statuses = {result.status for result in trajectory.tool_results}
    return bool(statuses) and (statuses <= set(INFRASTRUCTURE) or statuses == {CallStatus.MALFORMED})
