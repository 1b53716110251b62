"""Turns of some rollouts while tools of others are at work. Knows rollouts and their tools: no tensors.

           wave 1            wave 2           wave 3
rollout 0  writes call       writes call      writes     a call starts when its turn ends, and not when the wave does
rollout 1  writes   call.............................    parked: its tool is slow
rollout 2  writes      call  writes  call     writes

All that can go on start a wave together. What a rollout writes is the same whichever waves it writes it in.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from time import perf_counter

from ..trajectory import ToolResult
from .arguments import check_samples
from .samplers import OverlappingSampler, Sample
from .state import RolloutState
from .tool_flight import ToolFlight
from .turn_loop import TurnLoop

Results = dict[int, list[ToolResult]]  # of each rollout, one per call
SHORTEST_S = 0.02  # for this long every call of a wave is waited for
SLOW = 2.0  # a call that is this many times as long at work as the longest that has ended may take any time


@dataclass(slots=True)
class Waves:
    """Plays rollouts to their end, in waves.

    Example:
        Waves(loop, sampler, ToolFlight(runner)).play(live)
    """

    loop: TurnLoop
    sampler: OverlappingSampler
    flight: ToolFlight
    waiting: dict[int, RolloutState] = field(default_factory=dict)  # whose tools are at work
    started_s: dict[int, float] = field(default_factory=dict)  # since when
    together: set[int] = field(default_factory=set)  # of the latest wave, those whose calls share batches
    wave_s: float = 0.0  # what the latest wave took

    def play(self, live: list[RolloutState]) -> None:
        """Play until every rollout stopped; if something fails (Ctrl-C apart), no tool is at work when it is raised."""
        try:
            while live or self.waiting:
                if live:
                    self.play_wave(live)
                with self.loop.phase("tools"):
                    results = self.collect({state.index for state in live} & self.waiting.keys())
                live = self.answer(results)
        except Exception:
            self.flight.drain()  # who opened the environments closes them now
            raise

    def play_wave(self, states: list[RolloutState]) -> None:
        """One turn of these rollouts, whose calls are at work afterwards."""
        start_s = perf_counter()
        budgets = [self.loop.budget(state) for state in states]
        ended: set[int] = set()

        def end_turn(row: int, sample: Sample) -> None:
            ended.add(row)
            self.loop.take_turn(states[row], sample, budgets[row])
            if states[row].live and not states[row].job().is_batched:
                self.set_to_work([states[row]])

        with self.loop.phase("sampling"):
            contexts = [state.context() for state in states]
            samples = self.sampler.sample(contexts, budgets, parked=list(self.waiting), on_turn=end_turn)
        check_samples(samples, states)
        for row in sorted(set(range(len(states))) - ended):
            end_turn(row, samples[row])
        sharing = [state for state in states if state.live and state.index not in self.waiting]
        self.together = {state.index for state in sharing}
        self.set_to_work(sharing)
        self.wave_s = perf_counter() - start_s

    def set_to_work(self, states: list[RolloutState]) -> None:
        """Start the calls of these rollouts; those of one batched tool as one batch."""
        self.waiting |= {state.index: state for state in states}
        self.started_s |= {state.index: perf_counter() for state in states}
        self.flight.add({state.index: state.job() for state in states})

    def collect(self, fresh: Set[int]) -> Results:
        """The results that have come when it does not pay to wait for more: none only if no tool is at work.

        Args:
            fresh: the rollouts of the latest wave. Those that did not pay to wait for once are not waited for again.
        """
        self.flight.wait(lambda working: self.together.isdisjoint(working))
        self.flight.wait(lambda working: len(working) < len(self.waiting))
        results, since_s = self.flight.take(), perf_counter()
        awaited = fresh or self.waiting.keys()
        while late := awaited - results.keys():
            longest_s = max((result.latency_s for row in results.values() for result in row), default=0.0)
            soon_s = max(self.started_s[row] for row in late) + SLOW * longest_s - since_s
            patience = patience_s(late=len(late), ready=len(results), soon_s=soon_s, wave_s=self.wave_s)
            if perf_counter() >= (until_s := since_s + patience):
                break
            self.flight.wait(lambda working, late=late: not working >= late, until_s=until_s)  # type: ignore[misc]
            results |= self.flight.take()
        return results

    def answer(self, results: Results) -> list[RolloutState]:
        """Show each rollout its results, in order; those that go on."""
        states = [self.waiting.pop(index) for index in sorted(results)]
        for state in states:
            self.loop.take_results(state, results[state.index])
        return [state for state in states if state.live]


def patience_s(*, late: int, ready: int, soon_s: float, wave_s: float) -> float:
    """How long rollouts that have their results wait for late ones, in seconds.

    One that is left behind loses what is left of a wave, and all that are ready lose what is waited: that is even when
    the share of a wave that was waited is the share of the late. Those that may come soon are waited for up to a wave.

    Example:
        patience_s(late=1, ready=15, soon_s=0.0, wave_s=1.6)  # 0.1

    Args:
        late, ready: numbers of rollouts.
        soon_s: until when a result would be no surprise.
        wave_s: what a wave takes.
    """
    return max(SHORTEST_S, wave_s * late / (late + ready), min(soon_s, wave_s))
