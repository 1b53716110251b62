"""A model's rollouts are those of the rounds, token by token, whatever their tools take and whoever waits for whom."""

import random
import threading

import pytest
import torch

from envmask_trl import KeptCacheSampler, ParsedTurn, RolloutLimits, ToolCall, ToolRunner, run_rollouts
from envmask_trl.rollout import waves

from .tiny import impatient_model, tiny_tokenizer, user

TINY = tiny_tokenizer()
MODEL = impatient_model(TINY)
ROWS = 6


class Waves:
    """Counts the calls of a sampler, and lets tools wait for later ones."""

    def __init__(self):
        self.number, self.changed = 0, threading.Condition()

    def begin(self):
        with self.changed:
            self.number += 1
            self.changed.notify_all()

    def skip(self, waves):
        """Wait until so many more have begun; briefly, since perhaps there are none without this rollout."""
        with self.changed:
            end = self.number + waves
            self.changed.wait_for(lambda: self.number >= end, timeout=0.5)


class Diary:
    """An environment that is late and fails now and then, ends by itself once, and notices when two calls overlap."""

    def __init__(self, number, late, waves):
        self.number, self.late, self.waves, self.calls, self.busy = number, late, waves, 0, threading.Lock()

    def look(self) -> str:
        """Look around."""
        assert self.busy.acquire(blocking=False), "called concurrently with itself"
        if self.late is not None and self.late.random() < 0.3:
            self.waves.skip(self.late.choice([1, 2]))
        self.calls += 1
        self.busy.release()
        if (self.number + self.calls) % 5 == 0:
            raise OSError("dark")
        return f"room {self.number * self.calls}" * (1 + self.number % 3)

    @property
    def done(self):
        return self.number == 1 and self.calls == 4


class Watched(KeptCacheSampler):
    """Writes down who was parked in each call, and counts the rows of the caches that are kept."""

    def __init__(self, *args, waves, **options):
        super().__init__(*args, **options)
        self.waves, self.parked = waves, []

    def sample(self, contexts, max_new_tokens, *, parked=(), **options):
        self.waves.begin()
        samples = super().sample(contexts, max_new_tokens, parked=parked, **options)
        homes = {id(kept.home): kept.home.seen.size(0) for kept in self.kept.values()}
        assert sum(homes.values()) == len(contexts) + len(parked) == len(self.kept)
        self.parked.append(sorted(parked))
        return samples


def looks_often(turn):
    number = sum(map(ord, turn))
    if number % 11 == 0:
        return ParsedTurn("answer", {"role": "assistant", "content": turn})
    if number % 7 == 0:
        return ParsedTurn("malformed", {"role": "assistant", "content": turn}, reason="odd")
    function = {"name": "look", "arguments": {}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}] * 2}
    return ParsedTurn("calls", message, (ToolCall("", "look", {}),) * 2)


def play(*, seed, do_sample, late=None):
    """What the rollouts came to, their log-probs, and where torch's generator is afterwards.

    Args:
        late: a seed that says which calls are late; None plays rounds, with tools that answer at once.
    """
    torch.manual_seed(seed)
    begun = Waves()
    sampler = Watched(MODEL, TINY, do_sample=do_sample, overlap_tools=late is not None, waves=begun)
    played = run_rollouts(
        [user("row " + "of " * (row % 3)) for row in range(ROWS)],
        tokenizer=TINY,
        sampler=sampler,
        environments=[Diary(row, late and random.Random(late + row), begun) for row in range(ROWS)],
        parser=looks_often,
        limits=RolloutLimits(max_turn_tokens=5, max_tool_calling_iterations=5, max_completion_length=300),
        tool_runner=ToolRunner(max_concurrent=4),
    )
    assert any(sampler.parked) == (late is not None), "someone must be left behind for this test to say something"
    told = [
        (row.completion_ids, row.env_mask, row.stop_reason, row.messages, [r.content for r in row.tool_results])
        for row in played
    ]
    return told, [row.logprobs for row in played], torch.random.get_rng_state()


@pytest.mark.parametrize(("seed", "do_sample", "late"), [(0, True, 100), (1, True, 200), (0, False, 300)])
def test_rollouts_are_those_of_the_rounds_whatever_their_tools_take(monkeypatch, seed, do_sample, late):
    monkeypatch.setattr(waves, "patience_s", lambda **_: 0.0)  # as little as can be is waited for
    expected, logprobs, generator = play(seed=seed, do_sample=do_sample)
    assert len({row[2] for row in expected}) > 1, "rollouts must end at different times"
    told, told_logprobs, told_generator = play(seed=seed, do_sample=do_sample, late=late)
    assert told == expected
    for found, wanted in zip(told_logprobs, logprobs, strict=True):
        assert torch.tensor(found).allclose(torch.tensor(wanted), atol=1e-4)
    assert torch.equal(told_generator, generator), "the next batch would begin with other seeds"
