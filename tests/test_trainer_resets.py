"""An environment whose reset fails is a rollout without a turn: the others are trained, the run goes on."""

import asyncio
import threading
import time
import warnings
from types import SimpleNamespace
from typing import ClassVar

import pytest

from envmask_trl import RolloutAborted, StopReason
from envmask_trl.rollout.environment_runs import reset_environments
from envmask_trl.training._trl_environments import guarded, resets_answered

from .test_trainer_environments import Counter2
from .tiny import answer, call
from .trained_scripts import logged, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning")
SCRIPTS = [[call("add", a=n, b=n), answer("ok")] for n in range(4)]


class Failing(Counter2):
    """The reset of some fails, and get_reward fails where reset did: it was never counted."""

    made = 0  # the first one only to read its methods
    errors: ClassVar = {2: ConnectionError("no container"), 4: RolloutAborted("no machine"), 6: OSError("no port")}

    def __init__(self):
        Failing.made += 1
        self.error = self.errors.get(Failing.made)

    def reset(self, **row) -> str:
        if self.error is not None:
            raise self.error
        return super().reset(**row)


def train(tmp_path, factory=Failing, reward=None, **options):
    Failing.made = 0
    options = {"scale_rewards": "none", "max_steps": 1, **options}
    trainer = make_trainer(tmp_path, reward, SCRIPTS, tools=None, environment_factory=factory, **options)
    batches = []
    trainer.after_scoring = batches.append
    trainer.train()
    return trainer, batches


def test_some_of_the_resets_fail_and_the_others_are_trained(tmp_path):
    """Rewards 0, none, 4, none: baseline 2; then 0, 2, 4, none. What never began has neither reward nor trained token.

    The two whose state nobody knows are not reset again: the second step has the instances 1, 3, 5 and 6.
    """
    trainer, batches = train(tmp_path, max_steps=2)
    ends = [row.error or row.stop_reason for row in trainer.trajectories]
    assert ends == [*[StopReason.ANSWERED] * 3, "OSError: no port"] and Failing.made == 6
    assert [batch["advantages"].tolist() for batch in batches] == [[-2.0, 0.0, 2.0, 0.0], [-2.0, 0.0, 2.0, 0.0]]
    trained = [(batch["completion_mask"] * batch["tool_mask"]).any(dim=1).tolist() for batch in batches]
    assert trained == [[True, False, True, False], [True, True, True, False]]
    assert logged(trainer)["env_mask/stop/env_error"] == 0.5
    assert "reset" in vars(Failing) and Failing.reset.__qualname__ == "Failing.reset"  # the class is as it was


def test_resets_and_closes_of_a_step_are_at_work_at_the_same_time_and_a_hung_one_is_given_up(tmp_path):
    """All but the hung one wait for each other, in the resets and in the closes."""
    barriers = {moment: threading.Barrier(size, timeout=20) for moment, size in (("reset", 3), ("close", 4))}

    class Slow(Counter2):
        made = 0

        def __init__(self):
            Slow.made += 1
            self.hangs, self.is_played = Slow.made == 2, False

        def reset(self, **row) -> str:
            self.is_played = True
            if self.hangs:
                time.sleep(1e6)
            barriers["reset"].wait()
            return super().reset(**row)

        def close(self):
            if self.is_played:
                barriers["close"].wait()

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of a close that failed
        trainer, _ = train(tmp_path, Slow, tool_timeout_s=1.0)
    ends = [row.error or row.stop_reason for row in trainer.trajectories]
    lost = "TimeoutError: reset gave no answer within 1 s"
    assert ends == [StopReason.ANSWERED, lost, *[StopReason.ANSWERED] * 2]


@pytest.mark.parametrize(
    ("policy", "advantages"),
    [("mask_loss", [-1.0, 1.0, -1.0, 1.0]), ("drop", [0.0, 0.0, 0.0, 0.0])],
)
def test_the_void_policy_holds_for_what_a_reward_function_says_of_a_reset_that_failed(policy, advantages, tmp_path):
    def reward(stop_reasons, **_):
        return [2.0 if reason is StopReason.ENV_ERROR else 0.0 for reason in stop_reasons]

    class Silent(Failing):
        get_reward = None

    _, (batch,) = train(tmp_path, Silent, reward, void_policy=policy)
    assert batch["advantages"].tolist() == advantages


def test_a_step_in_which_no_reset_succeeds_stops_with_one_sentence(tmp_path):
    class Gone(Counter2):
        def reset(self, **row):
            raise ConnectionError("the service is down")

    with pytest.raises(ValueError, match="for any of 4 rollouts of a step; the first raised ConnectionError: the"):
        train(tmp_path, Gone)


def test_the_reset_that_a_tool_calls_itself_raises_as_it_always_did():
    class Slotted:
        __slots__ = ("moves",)

        def reset(self, **row):
            self.moves = row["moves"]

    class Inherits(Slotted):
        __slots__ = ()

    rooms = [Slotted(), Inherits(), Inherits()]
    opened = reset_environments(rooms, [{"moves": 1}, {}, {"moves": 2}])
    assert [each.error for each in opened] == ["", "KeyError: 'moves'", ""] and rooms[2].moves == 2
    with resets_answered(opened):
        assert [room.reset() for room in rooms] == [None] * 3  # as TRL calls them: they were played already
        with pytest.raises(KeyError):
            rooms[0].reset()
    assert "reset" not in vars(Inherits) and Slotted.reset.__qualname__.endswith("Slotted.reset")


def test_an_async_reward_of_an_environment_that_failed_is_not_asked_for():
    async def get_reward(environments, **columns):
        return [None if environment is None else environment.total for environment in environments]

    played = [SimpleNamespace(stop_reason=reason) for reason in (StopReason.ENV_ERROR, StopReason.ANSWERED)]
    rewards = guarded(get_reward, SimpleNamespace(trajectories=played))
    assert asyncio.run(rewards(environments=[object(), SimpleNamespace(total=3.0)], gold=1)) == [None, 3.0]


def test_a_column_of_any_name_reaches_reset():
    room = Counter2()
    row = {"env": 1, "kind": 2, "args": 3}
    with resets_answered(reset_environments([room], [row])):
        assert room.reset(**row) == " Count."
        assert room.reset(**row) == " Count."
