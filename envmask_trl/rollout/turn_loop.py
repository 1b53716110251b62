"""One turn of each rollout, and what it leads to. Knows token ids, text and tools: no tensors, no trainer.

sampled ids -> take_turn -> calls -> (a round of tools, or waves) -> results -> take_results -> observation, or the end
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..trajectory import CallStatus, StopReason, ToolCall, ToolResult
from .arguments import check_samples
from .limits import RolloutLimits
from .observations import ObservationEncoder
from .samplers import Sample, Sampler
from .search.tag_protocol import TagProtocol
from .state import RolloutState
from .tool_calls import InconsistentTurn, ParsedTurn, TurnParser, find_unusable, short_reason
from .tools import ToolRunner

Phase = Callable[[str], AbstractContextManager]
UNREADABLE_TEXT = (ValueError, SyntaxError, LookupError, RecursionError)  # of a model's text; others are faults
UNREADABLE = "unreadable_call"  # stands in for the name of a call that could not be read


@dataclass(frozen=True, slots=True)
class TurnLoop:
    """Plays rounds. Everything that changes is in the states."""

    tokenizer: PreTrainedTokenizerBase
    sampler: Sampler
    limits: RolloutLimits
    parser: TurnParser | None  # None without tools: a turn is then always an answer
    encoder: ObservationEncoder | None
    runner: ToolRunner
    stop_ids: frozenset[int]
    phase: Phase
    protocol: TagProtocol | None = None

    def play_round(self, live: list[RolloutState]) -> None:
        """One turn of the model for each live rollout, then one round of all their calls."""
        budgets = [self.budget(state) for state in live]
        with self.phase("sampling"):
            samples = self.sampler.sample([state.context() for state in live], budgets)
        check_samples(samples, live)
        for state, sample, budget in zip(live, samples, budgets, strict=True):
            self.take_turn(state, sample, budget)
        self.answer_calls([state for state in live if state.live])

    def budget(self, state: RolloutState) -> int:
        """The most tokens that the next turn may have."""
        room = state.room(self.limits)
        return min(room, self.limits.max_turn_tokens or room)

    def take_turn(self, state: RolloutState, sample: Sample, budget: int) -> None:
        """Append what was sampled and decide whether the rollout goes on."""
        if len(sample.token_ids) > budget:
            raise ValueError(
                f"the sampler returned {len(sample.token_ids)} tokens for rollout {state.index}, "
                f"whose budget is {budget}"
            )
        if not sample.token_ids:
            state.finish(StopReason.LENGTH)
            return
        if self.protocol is not None:
            sample = self.protocol.cut(sample)
        was_cut = sample.finish_reason == "length"
        turn = self.plain(sample) if was_cut or self.parser is None else self.read(state, sample)
        state.add_turn(sample, turn)
        state.closed = sample.token_ids[-1] in self.stop_ids
        if was_cut:
            state.finish(StopReason.LENGTH)
        elif turn.kind == "answer":
            state.finish(StopReason.ANSWERED)
        elif state.tool_rounds >= self.limits.max_tool_calling_iterations:
            state.finish(StopReason.MAX_TURNS)
        elif not self.has_room_for_results(state):
            state.finish(StopReason.CONTEXT_FULL)

    def read(self, state: RolloutState, sample: Sample) -> ParsedTurn:
        parser = state.parser or self.parser
        assert parser is not None
        try:
            turn = parser(str(self.tokenizer.decode(list(sample.token_ids))))
        except InconsistentTurn:
            raise
        except UNREADABLE_TEXT as error:
            return ParsedTurn("malformed", self.plain(sample).message, reason=short_reason(error))
        if not isinstance(turn, ParsedTurn):
            raise ValueError(f"the parser returned a {type(turn).__name__}, expected a ParsedTurn")
        if (problem := find_unusable(turn.calls)) is not None:
            return ParsedTurn("malformed", self.plain(sample).message, reason=problem)
        return turn

    def plain(self, sample: Sample) -> ParsedTurn:
        """A turn of which nothing is run, as text."""
        content = self.tokenizer.decode(list(sample.token_ids), skip_special_tokens=True)
        return ParsedTurn("answer", {"role": "assistant", "content": content})

    def has_room_for_results(self, state: RolloutState) -> bool:
        """Whether the scaffold, shortest contents and a short answer fit. Asked before a tool is run, not after."""
        assert self.encoder is not None
        calls = calls_or_stand_in(state)
        least = self.encoder.scaffold_tokens(calls, closed=state.closed) + self.encoder.min_content_tokens * len(calls)
        return least + self.limits.min_answer_tokens <= state.room(self.limits)

    def answer_calls(self, states: list[RolloutState]) -> None:
        """Run the calls of all rollouts at once and show each its results."""
        with self.phase("tools"):
            all_results = self.runner.run([state.job() for state in states]) if states else []
        for state, results in zip(states, all_results, strict=True):
            self.take_results(state, results)

    def take_results(self, state: RolloutState, results: list[ToolResult]) -> None:
        """Record what the calls of a rollout returned, and show it unless the rollout ends here."""
        results = results or [unreadable(state)]
        state.add_results(results)
        if (failure := environment_failure(results)) is not None:
            state.finish(StopReason.ENV_ERROR, failure)
        elif state.is_done():
            state.finish(StopReason.ENV_DONE)
        elif state.malformed_calls > self.limits.max_malformed_calls:
            state.finish(StopReason.MALFORMED)
        else:
            self.show_results(state, results)

    def show_results(self, state: RolloutState, results: list[ToolResult]) -> None:
        assert self.encoder is not None
        with self.phase("observations"):
            observation = self.encoder.encode(
                calls_or_stand_in(state),
                [result.content for result in results],
                closed=state.closed,
                max_tokens=state.room(self.limits) - self.limits.min_answer_tokens,
                history=state.history(),
            )
        if observation is None:
            state.finish(StopReason.CONTEXT_FULL)
        else:
            state.observe(observation, results)


def environment_failure(results: Sequence[ToolResult]) -> str | None:
    """What the first call said that lost its infrastructure."""
    said = (result.content for result in results if result.status is CallStatus.ABORTED)
    return next((text.removeprefix("Error: ") for text in said), None)


def calls_or_stand_in(state: RolloutState) -> tuple[ToolCall, ...]:
    """The calls of the last turn, or one that stands for a turn that could not be read."""
    return state.calls or (ToolCall(f"call{state.num_turns - 1:02d}000", UNREADABLE, {}),)


def unreadable(state: RolloutState) -> ToolResult:
    """The corrective answer to a turn that could not be read; nothing was run."""
    (call,) = calls_or_stand_in(state)
    content = f"Error: the tool call could not be read ({state.problem}); nothing was run. Write it again."
    return ToolResult(call.id, call.name, content, CallStatus.MALFORMED, latency_s=0.0)
