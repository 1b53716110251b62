"""TRL's environment contract: which methods are tools, how an episode opens, that it is closed once."""

import asyncio
import functools
import gc
import threading
import time
import weakref
from dataclasses import dataclass

import pytest

from envmask_trl.rollout.environment_runs import Opened, close_environments, reset_environments
from envmask_trl.rollout.environments import (
    environment_tools,
    is_done,
    merge_observation,
    tool_names,
    tools_by_name,
)
from envmask_trl.rollout.tools import ToolJob, ToolRunner
from envmask_trl.trajectory import CallStatus, ToolCall


class Maze:
    def __init__(self):
        self.closed = 0
        self.done = False

    def reset(self, start: str = "a1", **row):
        return f"You are at {start}."

    def move(self, to: str) -> str:
        self.done = to == "exit"
        return to

    async def look(self) -> str:
        return "walls"

    @staticmethod
    def rules() -> str:
        return "no diagonals"

    @property
    def map(self):
        raise AssertionError("a property was evaluated")

    def get_reward(self) -> float:
        return float(self.done)

    def close(self):
        self.closed += 1

    def _step(self):
        pass


def test_public_methods_are_tools_and_no_property_is_evaluated():
    tools = environment_tools(Maze())
    assert tool_names(tools) == ["look", "move", "rules"]
    assert tools_by_name(tools)["move"](to="b2") == "b2"


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two tools are named 'move'"):
        tools_by_name([Maze().move, Maze().move])


@pytest.mark.parametrize("nameless", [functools.partial(print), lambda: None])
def test_a_tool_that_no_model_could_call_is_refused(nameless):
    with pytest.raises(ValueError, match=r"tool 1 \((partial|function)\) has no name"):
        tools_by_name([print, nameless])
    nameless.__name__ = "named"
    assert list(tools_by_name([print, nameless])) == ["print", "named"]


# Opening an episode


def test_reset_gets_the_fields_of_the_row():
    maze, other = Maze(), Maze()
    opened = reset_environments([maze, other], [{"start": "c3", "prompt": "ignored"}, {}])
    assert opened == [Opened(maze, "You are at c3."), Opened(other, "You are at a1.")]


def test_an_environment_without_a_usable_reset_is_refused():
    class Async:
        async def reset(self):
            pass

    class Wrong:
        def reset(self):
            return 3

    for environment in (object(), Async()):
        with pytest.raises(ValueError, match=r"must have a reset\(\*\*row\) that is a method and not async"):
            reset_environments([environment], [{}])
    with pytest.raises(ValueError, match=r"Wrong.reset returned int, expected a str, a list of content blocks or None"):
        reset_environments([Wrong()], [{}])


class Says:
    """Opens with what it is given."""

    def __init__(self, *blocks):
        self.blocks = list(blocks)

    def reset(self):
        return self.blocks


TEXT = [{"type": "text", "text": "Play."}]
BOARD = {"type": "text", "text": " Board."}
IMAGE = {"type": "image", "image": "board.png", "text": None}


def test_an_observation_in_blocks_of_text_is_one_text_and_another_is_refused():
    """A template that prints only strings would leave the whole user's turn out."""
    (opened,) = reset_environments([Says(BOARD, BOARD)], [{}])
    assert opened.observation == " Board. Board."
    with pytest.raises(ValueError, match=r"what Says.reset returned holds .*'image'.*; images are not supported yet"):
        reset_environments([Says(BOARD, IMAGE)], [{}])


@pytest.mark.parametrize(
    ("content", "observation", "merged"),
    [
        ("Play.", " Board.", "Play. Board."),
        (TEXT, " Board.", "Play. Board."),
        ("Play.", None, "Play."),
        (None, " Board.", " Board."),
    ],
)
def test_an_observation_ends_the_last_user_message_and_the_input_stays(content, observation, merged):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    before = repr(prompt)
    assert merge_observation(prompt, observation) == [prompt[0], {"role": "user", "content": merged}]
    assert repr(prompt) == before


def test_an_observation_is_not_put_into_another_roles_message():
    prompt = [{"role": "user", "content": "Play."}, {"role": "assistant", "content": "Ok"}]
    assert merge_observation(prompt, " Board.") == [{"role": "user", "content": "Play. Board."}, prompt[1]]
    with pytest.raises(ValueError, match="no user message"):
        merge_observation(prompt[1:], " Board.")


# Ending it


def test_done_is_a_flag_and_a_method_of_that_name_is_a_tool():
    class Quiz:
        def done(self):
            return "the model says that it is done"

    maze = Maze()
    assert not is_done(maze)
    maze.move("exit")
    assert is_done(maze)
    assert not is_done(Quiz()) and not is_done(object())


def test_an_environment_is_closed_once_however_often_it_is_asked_for():
    maze, other = Maze(), Maze()
    for _ in range(3):
        close_environments([maze])
    assert (maze.closed, other.closed) == (1, 0)
    close_environments([object(), other])  # close is optional
    assert other.closed == 1


def test_a_closed_environment_cannot_be_opened_again_and_left_open():
    maze = Maze()
    close_environments([maze])
    with pytest.raises(ValueError, match="Maze was closed and cannot be reset"):
        reset_environments([maze], [{}])


def test_a_closed_environment_is_remembered_without_being_kept_alive():
    maze = Maze()
    alive = weakref.ref(maze)
    close_environments([maze])
    del maze
    gc.collect()
    assert alive() is None


def test_environments_that_hide_their_attributes_are_closed_once():
    closed = []

    @dataclass(frozen=True)
    class Frozen:  # not settable in the usual way
        moves: list  # not hashable

        def close(self):
            closed.append("frozen")

    class Remote:  # answers for every name, as proxies do
        def __getattr__(self, name):
            return lambda: closed.append(name)

    frozen, remote = Frozen([]), Remote()
    for environments in ([frozen], [remote], [frozen, remote]):
        close_environments(environments)
    assert closed == ["frozen", "close"]


def test_what_close_raises_is_a_warning_and_close_is_not_repeated():
    class Broken:
        def close(self):
            raise SystemExit("container gone")

    broken = Broken()
    with pytest.warns(RuntimeWarning, match="Broken.close failed: Error: SystemExit: container gone"):
        close_environments([broken])
    close_environments([broken])


@pytest.mark.parametrize("inside_a_loop", [False, True])
def test_an_async_close_is_awaited_on_the_loop_of_the_tools(inside_a_loop):
    class Session:
        async def close(self):
            self.loop = asyncio.get_running_loop()

    async def cell(*sessions):
        for session in sessions:
            close_environments([session], runner=runner)

    first, second, runner = Session(), Session(), ToolRunner()
    if inside_a_loop:
        asyncio.run(cell(first, second))
    else:
        close_environments([first, second], runner=runner)
    assert first.loop is second.loop
    runner.close()


def test_an_environment_whose_tool_hangs_is_closed_and_the_thread_that_it_waits_in_ends():
    class Container:
        def __init__(self):
            self.killed = threading.Event()

        def work(self):
            """Answers when the container is gone."""
            self.killed.wait(20)

        def close(self):
            self.killed.set()

    env, runner = Container(), ToolRunner(timeout_s=0.1)
    job = ToolJob((ToolCall("call00000", "work", {}),), {"work": env.work}, ordered=frozenset({"work"}))
    [[hung]] = runner.run([job])
    assert hung.status is CallStatus.TIMEOUT
    close_environments([env], runner=runner)
    assert env.killed.is_set()


def test_a_hung_close_is_given_up_at_the_deadline():
    class Stuck:
        def close(self):
            time.sleep(1e6)

    with pytest.warns(RuntimeWarning, match=r"close gave no answer within 0.3 s"):
        close_environments([Stuck()], runner=ToolRunner(timeout_s=0.3))


# Many at a time


def test_resets_and_closes_are_at_work_at_the_same_time():
    """Each waits until all four have begun."""
    barriers = {moment: threading.Barrier(4, timeout=20) for moment in ("reset", "close")}

    class Room:
        def reset(self, number):
            barriers["reset"].wait()
            return str(number)

        def close(self):
            barriers["close"].wait()
            closed.append(self)

    rooms, closed = [Room() for _ in range(4)], []
    opened = reset_environments(rooms, [{"number": n} for n in range(4)], runner=ToolRunner(timeout_s=20))
    assert opened == [Opened(room, str(n)) for n, room in enumerate(rooms)]
    close_environments(rooms, runner=ToolRunner(timeout_s=20))
    assert len(closed) == 4


def test_a_reset_that_hangs_or_raises_is_an_error_and_is_not_tried_again():
    class Room:
        def reset(self, error):
            resets.append(error)
            if error is None:
                time.sleep(1e6)
            raise error("no container")

    resets, rooms = [], [Room(), Room(), Room()]
    rows = [{"error": None}, {"error": ConnectionError}, {"error": KeyboardInterrupt}]  # no Ctrl-C: that one is ours
    opened = reset_environments(rooms, rows, runner=ToolRunner(timeout_s=0.3, retries=2))
    assert [each.error for each in opened] == [
        "TimeoutError: reset gave no answer within 0.3 s",
        "ConnectionError: no container",
        "KeyboardInterrupt: no container",
    ]
    assert len(resets) == 3
