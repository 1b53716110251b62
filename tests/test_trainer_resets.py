"""An environment whose reset fails is a rollout without a turn: the others are trained, the run goes on."""

import asyncio
from types import SimpleNamespace

import pytest

from envmask_trl import RolloutAborted, StopReason
from envmask_trl.training._trl_environments import guarded, resets_caught

from .test_trainer_environments import Counter2
from .tiny import answer, call
from .trained_scripts import logged, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning")
SCRIPTS = [[call("add", a=n, b=n), answer("ok")] for n in range(4)]


class Failing(Counter2):
    """Every second reset fails, and get_reward fails where reset did: it was never counted."""

    resets, made = 0, 0
    errors = (ConnectionError("no container"), RolloutAborted("no machine"))

    def __init__(self):
        Failing.made += 1

    def reset(self, **row) -> str:
        Failing.resets += 1
        if Failing.resets % 2 == 0:
            raise self.errors[Failing.resets // 2 % 2]
        return super().reset(**row)


def train(tmp_path, factory=Failing, reward=None, **options):
    Failing.resets = Failing.made = 0
    options = {"scale_rewards": "none", "max_steps": 1, **options}
    trainer = make_trainer(tmp_path, reward, SCRIPTS, tools=None, environment_factory=factory, **options)
    batches = []
    trainer.after_scoring = batches.append
    trainer.train()
    return trainer, batches


def test_half_of_the_resets_fail_and_the_other_half_is_trained(tmp_path):
    """Rewards 0, none, 4, none: baseline 2. The rollouts that never began have neither reward nor trained token."""
    trainer, batches = train(tmp_path, max_steps=2)
    ends = [row.error or row.stop_reason for row in trainer.trajectories]
    lost = ["RolloutAborted: no machine", "ConnectionError: no container"]
    assert ends == [StopReason.ANSWERED, lost[0], StopReason.ANSWERED, lost[1]]
    for batch in batches:
        assert batch["advantages"].tolist() == [-2.0, 0.0, 2.0, 0.0]
        assert (batch["completion_mask"] * batch["tool_mask"]).any(dim=1).tolist() == [True, False, True, False]
    assert logged(trainer)["env_mask/stop/env_error"] == 0.5
    assert Failing.made == 6  # the two whose state nobody knows are not reset again
    assert "reset" in vars(Failing) and Failing.reset.__qualname__ == "Failing.reset"  # the class is as it was


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
    with resets_caught(rooms) as errors:
        for room, row in zip(rooms, [{"moves": 1}, {}, {"moves": 2}], strict=True):
            assert room.reset(**row) is None
        assert errors == {id(rooms[1]): "KeyError: 'moves'"} and rooms[2].moves == 2
        with pytest.raises(KeyError):
            rooms[0].reset()
    assert "reset" not in vars(Inherits) and Slotted.reset.__qualname__.endswith("Slotted.reset")


def test_an_async_reward_of_an_environment_that_failed_is_not_asked_for():
    async def get_reward(environments, **columns):
        return [None if environment is None else environment.total for environment in environments]

    played = [SimpleNamespace(stop_reason=reason) for reason in (StopReason.ENV_ERROR, StopReason.ANSWERED)]
    rewards = guarded(get_reward, SimpleNamespace(trajectories=played))
    assert asyncio.run(rewards(environments=[object(), SimpleNamespace(total=3.0)], gold=1)) == [None, 3.0]
