"""Rollouts go on while tools of others are at work, and what they write is what they would have written without that.

Who waits for whom is told by events, never by the clock: what must not be waited for waits itself for what comes later.
"""

import random
import threading
import time

import pytest

from envmask_trl import (
    BatchedTool,
    RolloutAborted,
    ScriptedSampler,
    StopReason,
    ToolRunner,
    run_rollouts,
)
from envmask_trl.rollout import waves
from envmask_trl.rollout.waves import patience_s

from .scripted_turns import ANSWER, CALL, PROMPT, ids, text, tokenizer

PATIENT_S = 20.0  # longer than anything here takes: who waits for it fails


class OverlappingScript(ScriptedSampler):
    """Plays scripts, tells each turn when it ends, and then does what `between` says before the next row's turn."""

    overlap_tools = True

    def __init__(self, *scripts, between=lambda row, turn: None):
        super().__init__([[ids(turn) for turn in script] for script in scripts])
        self.between, self.parked = between, []

    def sample(self, contexts, max_new_tokens, *, parked=(), on_turn=None):
        self.parked.append(sorted(parked))
        samples = super().sample(contexts, max_new_tokens)
        for row, (context, sample) in enumerate(zip(contexts, samples, strict=True)):
            on_turn(row, sample)
            self.between(context.id, self.turns_played[context.id])
        return samples

    @property
    def waves(self):
        return [[context.id for context in contexts] for contexts in self.seen]


def play(sampler, *, tools=(), **options):
    prompts = [PROMPT] * len(sampler.scripts)
    return run_rollouts(prompts, tokenizer=tokenizer(), sampler=sampler, tools=tools, **options)


def named(tool, name):
    tool.__name__, tool.__doc__ = name, "A tool."
    return tool


GO, WAIT = CALL % ("go", "{}"), CALL % ("wait", "{}")
GO_ON = named(lambda: "gone", "go")


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """A busy machine may take long to start a thread; tools that are late here are so until something happens."""
    monkeypatch.setattr(waves, "SHORTEST_S", 0.3)


def test_the_others_finish_all_their_turns_while_one_rollouts_tool_is_at_work():
    finished, order = threading.Event(), []

    def between(row, turn):
        order.append((row, turn))
        if order[-3:] == [(0, 4), (2, 4), (3, 4)]:
            finished.set()

    def wait():
        return "after the others" if finished.wait(PATIENT_S) else "before the others"

    sampler = OverlappingScript([GO] * 3 + [ANSWER], [WAIT, ANSWER], *[[GO] * 3 + [ANSWER]] * 2, between=between)
    played = play(sampler, tools=[GO_ON, named(wait, "wait")])
    assert text(played[1]) == "after the others"
    assert [row.num_turns for row in played] == [4, 2, 4, 4]
    assert sampler.waves == [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3], [0, 2, 3], [1]]
    assert sampler.parked == [[], [1], [1], [1], []]


def test_a_call_is_at_work_as_soon_as_its_turn_has_ended_and_not_when_all_turns_have():
    at_work = threading.Event()
    seen = []

    def go():
        at_work.set()
        return "gone"

    def between(row, turn):
        if (row, turn) == (0, 1):
            seen.append(at_work.wait(PATIENT_S))  # rows 1 and 2 are still being sampled

    play(OverlappingScript(*[[GO, ANSWER]] * 3, between=between), tools=[named(go, "go")])
    assert seen == [True]


def test_a_rollout_whose_results_came_joins_the_next_wave():
    release, released = threading.Event(), threading.Event()

    def wait():
        release.wait(PATIENT_S)
        released.set()

    def between(row, turn):
        if (row, turn) == (0, 2):
            release.set()
            assert released.wait(PATIENT_S)
            time.sleep(0.2)  # for the tool's thread to end within this wave

    sampler = OverlappingScript([GO] * 3 + [ANSWER], [WAIT, ANSWER], between=between)
    play(sampler, tools=[GO_ON, named(wait, "wait")])
    assert sampler.waves == [[0, 1], [0], [0, 1], [0]]


def test_fast_tools_are_waited_for_together(monkeypatch):
    monkeypatch.setattr(waves, "SHORTEST_S", PATIENT_S)
    sampler = OverlappingScript(*[[GO, GO, ANSWER]] * 4)
    play(sampler, tools=[named(lambda: time.sleep(0.01 * random.random()), "go")])
    assert sampler.waves == [[0, 1, 2, 3]] * 3


def test_how_long_ready_rollouts_wait_for_late_ones():
    assert patience_s(late=1, ready=15, soon_s=-1.0, wave_s=16.0) == 1.0, "a slow one of sixteen: a sixteenth of a wave"
    assert patience_s(late=8, ready=8, soon_s=-1.0, wave_s=16.0) == 8.0
    assert patience_s(late=1, ready=15, soon_s=3.0, wave_s=16.0) == 3.0, "it may come soon, as the others did"
    assert patience_s(late=1, ready=15, soon_s=99.0, wave_s=16.0) == 16.0, "but for a wave at most"
    assert patience_s(late=1, ready=15, soon_s=-1.0, wave_s=0.0) == waves.SHORTEST_S


class Table(BatchedTool):
    """Answers all calls of a round together, and slowly enough for a wave to begin without it."""

    def __init__(self):
        self.sizes = []

    def go(self) -> str:
        """Look something up."""
        raise AssertionError

    def answer_all(self, arguments):
        self.sizes.append(len(arguments))
        time.sleep(0.15)
        return ["found"] * len(arguments)


def test_queries_of_a_batched_tool_stay_one_batch_and_are_waited_for_together():
    table, finished = Table(), threading.Event()
    scripts = [[GO, GO, ANSWER]] * 4 + [[WAIT, GO, ANSWER]]
    sampler = OverlappingScript(*scripts, between=lambda row, turn: (row, turn) == (3, 3) and finished.set())
    (*_, last) = played = play(sampler, tools=[table.go, named(lambda: finished.wait(PATIENT_S), "wait")])
    assert table.sizes == [4, 4, 1], "four rollouts in each wave; the fifth was left behind"
    assert sampler.waves == [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3], [4], [4]]
    assert [text(row) for row in played[:4]] == ["foundfound"] * 4 and text(last) == "truefound"


def test_a_rollout_with_a_faster_tool_waits_for_the_batch_that_its_own_queries_will_join(monkeypatch):
    monkeypatch.setattr(waves, "patience_s", lambda **_: 0.0)
    table = Table()
    sampler = OverlappingScript(*[[GO, GO, ANSWER]] * 3, [CALL % ("quick", "{}"), GO, ANSWER])
    play(sampler, tools=[table.go, named(lambda: "at once", "quick")])
    assert table.sizes == [3, 4] and sampler.waves == [[0, 1, 2, 3]] * 3


def test_a_tool_that_raises_aborts_or_hangs_concerns_its_own_rollout():
    def fail(how: str) -> str:
        """Fail.

        Args:
            how: in which way
        """
        if how == "hang":
            time.sleep(1e6)
        raise {"raise": OSError, "abort": RolloutAborted}[how]("no")

    failing = [CALL % ("fail", f'{{"how": "{how}"}}') for how in ("raise", "abort", "hang")]
    sampler = OverlappingScript(*[[turn, ANSWER] for turn in failing], [GO, GO, ANSWER])
    first, second, third, last = play(sampler, tools=[fail, GO_ON], tool_runner=ToolRunner(timeout_s=0.5))
    assert text(first) == "Error: OSError: no" and first.stop_reason is last.stop_reason is StopReason.ANSWERED
    assert second.stop_reason is StopReason.ENV_ERROR and second.num_turns == 1
    assert text(third) == "Error: fail gave no answer within 0.5 s" and third.stop_reason is StopReason.ANSWERED


def test_an_environment_is_not_closed_under_a_call_when_the_sampler_fails():
    order = []

    class Room:
        def reset(self, **row):
            pass

        def go(self) -> str:
            """Go on."""
            time.sleep(0.2)
            order.append("answered")
            return "gone"

        def close(self):
            order.append("closed")

    def fail(row, turn):
        raise ValueError("out of memory")

    twice = GO.removesuffix("<|im_end|>") + GO

    with pytest.raises(ValueError, match="out of memory"):
        play(OverlappingScript([twice], [GO], between=fail), environments=Room)
    assert order == ["answered", "closed", "closed"], "and the second call of the turn is not begun"


def test_a_process_whose_rollouts_are_over_asks_the_others_and_samples_nothing():
    elsewhere = iter([True, True, True, False])
    sampler = OverlappingScript([GO, GO, ANSWER])
    play(sampler, tools=[GO_ON], any_live=lambda live: next(elsewhere) or live > 0)
    assert sampler.waves == [[0], [0], [0]] and next(elsewhere, "asked") == "asked"
