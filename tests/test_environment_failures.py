"""An environment that fails ends its own rollout: the error is kept, the others go on, and nothing is left open."""

import _thread
import contextvars
import functools
import signal
import threading
import time

import pytest

from envmask_trl import RolloutAborted, StopReason, load_rollouts, save_rollouts

from .scripted_turns import ANSWER, CALL, play

MOVE = CALL % ("move", '{"to": "a"}')


class Room:
    """Does what its row says, when its row says so."""

    open = 0

    def __init__(self):
        Room.open += 1

    def reset(self, fails: str = "", error: type[BaseException] = ConnectionError, **row):
        self.fails, self.error = fails, error
        self.fail("reset")

    def fail(self, moment: str) -> None:
        """Raise if this is the moment.

        Args:
            moment: of the episode
        """
        if self.fails == moment:
            raise self.error("no container")

    def move(self, to: str) -> str:
        """Go.

        Args:
            to: a field
        """
        self.fail("move")
        return to

    @property
    def done(self):
        self.fail("done")
        return False

    def state_key(self):
        self.fail("state_key")
        return "a"

    def close(self):
        Room.open -= 1


class Shy(Room):
    """Cannot always be made."""

    made = 0

    def __init__(self):
        Shy.made += 1
        if Shy.made % 2:
            raise OSError("no port left")
        super().__init__()


def ends(rows):
    return [(row.stop_reason, row.error) for row in rows]


ENV_ERROR, ANSWERED = StopReason.ENV_ERROR, StopReason.ANSWERED


@pytest.mark.parametrize(
    "error", [ConnectionError, RuntimeError, KeyError, SystemExit, GeneratorExit, RolloutAborted, ExceptionGroup]
)
def test_whatever_reset_raises_ends_its_own_rollout_and_not_the_run(error, tmp_path):
    Room.open = 0
    raised = (lambda text: ExceptionGroup("g", [OSError(text)])) if error is ExceptionGroup else error
    rows = [{"fails": "reset", "error": raised}, {}]
    first, second = play([], [MOVE, ANSWER], tools=(), environments=Room, rows=rows)
    said = {KeyError: "KeyError: 'no container'", ExceptionGroup: "OSError: no container"}
    assert (first.stop_reason, first.error) == (ENV_ERROR, said.get(error, f"{error.__name__}: no container"))
    assert first.unfinished and first.completion_ids == () and first.prompt_ids
    assert (second.stop_reason, second.error, Room.open) == (ANSWERED, "", 0)
    save_rollouts([first, second], tmp_path / "rows.parquet")
    assert [row["error"] for row in load_rollouts(tmp_path / "rows.parquet")] == [first.error, ""]


@pytest.mark.parametrize("moment", ["done", "state_key"])
def test_an_environment_that_fails_when_it_is_asked_ends_its_own_rollout(moment):
    Room.open = 0
    rows = [{"fails": moment}, {}]
    first, second = play([MOVE, ANSWER], [MOVE, ANSWER], tools=(), environments=Room, rows=rows)
    assert ends([first, second]) == [(ENV_ERROR, "ConnectionError: no container"), (ANSWERED, "")]
    assert first.num_turns == 1 and len(first.tool_results) == (moment == "done") and Room.open == 0


def test_a_tool_that_lost_its_infrastructure_says_why_in_the_trajectory():
    rows = [{"fails": "move", "error": RolloutAborted}]
    (row,) = play([MOVE], tools=(), environments=Room, rows=rows)
    assert ends([row]) == [(ENV_ERROR, "RolloutAborted: no container")]


def test_an_environment_that_cannot_be_made_ends_its_own_rollout():
    Room.open = Shy.made = 0
    first, second = play([], [MOVE, ANSWER], tools=(), environments=Shy)
    assert ends([first, second]) == [(ENV_ERROR, "OSError: no port left"), (ANSWERED, "")] and Room.open == 0


def test_a_reset_that_fails_for_every_rollout_is_one_sentence():
    Room.open = 0
    rows = [{"fails": "reset"}, {"fails": "reset", "error": RolloutAborted}]
    with pytest.raises(ValueError, match=r"for any of 2 rollouts; the first one raised ConnectionError: no container"):
        play([], [], tools=(), environments=Room, rows=rows)
    assert Room.open == 0


def test_infrastructure_that_is_gone_for_all_is_no_fault_of_the_script():
    rows = [{"fails": "reset", "error": RolloutAborted}] * 2
    played = play([], [], tools=(), environments=Room, rows=rows)
    assert ends(played) == [(ENV_ERROR, "RolloutAborted: no container")] * 2


@pytest.fixture
def interruptible():
    """A shell's background jobs inherit that Ctrl-C is ignored."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


def test_the_users_own_ctrl_c_while_environments_are_reset_propagates_and_closes_them(interruptible):
    class Slow(Room):
        def reset(self, **row):
            _thread.interrupt_main()
            gone.wait(20)

        def close(self):
            gone.set()
            super().close()

    Room.open, gone = 0, threading.Event()
    with pytest.raises(KeyboardInterrupt):
        play([], tools=(), environments=Slow)
    assert Room.open == 0


def test_a_reset_that_hangs_ends_its_own_rollout_at_the_deadline(hasty):
    class Hangs(Room):
        def reset(self, hangs=False, **row):
            super().reset(**row)
            if hangs:
                time.sleep(1e6)

    Room.open, rows = 0, [{"hangs": True}, {}]
    first, second = play([], [MOVE, ANSWER], tools=(), environments=Hangs, rows=rows, tool_runner=hasty)
    said = "TimeoutError: reset gave no answer within 0.5 s"
    assert ends([first, second]) == [(ENV_ERROR, said), (ANSWERED, "")] and Room.open == 0


def test_a_reset_that_does_not_take_the_fields_of_a_row_is_named_with_the_remedy():
    class Seeded(Room):
        def reset(self, seed):
            pass

    with pytest.raises(ValueError, match=r"Seeded.reset does not take the fields prompt, gold of a row .* add \*\*row"):
        play([], [], tools=(), environments=Seeded, rows=[{"gold": 1}, {"gold": 2}])


@pytest.mark.parametrize("as_factory", [False, True])
def test_rollouts_that_would_share_an_environment_are_refused(as_factory):
    """Each would see the moves of the other."""
    room = Room()
    with pytest.raises(ValueError, match="two rollouts were given the same Room; make a new instance for each"):
        play([], [], tools=(), environments=(lambda: room) if as_factory else [room, room])


def test_an_observation_for_a_prompt_that_is_a_text_is_refused():
    class Says(Room):
        def reset(self, **row):
            return "Go."

        move = None

    with pytest.raises(ValueError, match="the prompt is a text, to which the observation of reset cannot be added"):
        play([], tools=(), environments=Says, prompts=["text"])


TASK = contextvars.ContextVar("task", default="none")


def test_a_reset_is_called_as_it_is_decorated_and_sees_the_callers_context():
    def only_gold(reset):
        @functools.wraps(reset)
        def decorated(self, **row):
            Room.reset(self)
            return reset(self, row["gold"])

        return decorated

    class Decorated(Room):
        @only_gold
        def reset(self, gold):
            return f" {gold} {TASK.get()}"

    token = TASK.set("today")
    (row,) = play([ANSWER], tools=(), environments=Decorated, rows=[{"gold": 7}])
    TASK.reset(token)
    assert ends([row]) == [(ANSWERED, "")] and row.prompt[-1]["content"].endswith(" 7 today")


def test_a_reset_that_is_bound_to_the_main_thread_is_told_where_it_runs():
    class Bound(Room):
        def reset(self, **row):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    said = r"no environment could be started .* main thread .* \(resets run outside of the main thread, as tools do\)"
    with pytest.raises(ValueError, match=said):
        play([], tools=(), environments=Bound)
