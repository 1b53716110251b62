"""One rollout while it runs. Knows token ids and messages: no tensors, no trainer, no tokenizer.

Tokens and their author are appended together, so neither can exist without the other. An observation stays pending
until the model has answered it: a rollout that ends before that simply never had it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..trajectory import Message, Segment, Source, StopReason, ToolCall, ToolResult, Trajectory
from .drift import Drift
from .environments import EnvironmentFailed, is_done, state_key
from .limits import RolloutLimits
from .observations import Observation
from .rendered_history import History
from .samplers import Context, Sample
from .tool_calls import ParsedTurn, TurnParser
from .tool_context import RolloutContext
from .tools import ToolJob


@dataclass(slots=True)
class RolloutState:
    """The growing row of one prompt.

    Example:
        state = RolloutState(0, prompt, (1, 2), tools={"weather": weather})
        state.add_turn(Sample((10, 19), None, "stop"), parsed)
        state.observe(observation, results)
        state.context()  # Context(id=0, token_ids=(1, 2, 10, 19, 20, 21))
    """

    index: int
    prompt: Any
    prompt_ids: tuple[int, ...]
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    ordered_tools: frozenset[str] = frozenset()
    environment: object | None = None
    tool_context: RolloutContext | None = None  # what its tools know of it
    parser: TurnParser | None = None  # the one that types arguments by its tools, where there is such
    stop_reason: StopReason | None = None
    error: str = ""  # why the environment failed
    calls: tuple[ToolCall, ...] = ()  # of the last turn, not yet answered
    problem: str = ""  # why the last turn could not be read
    closed: bool = False  # the last turn ended with its own stop token
    tool_rounds: int = 0
    malformed_calls: int = 0
    cut_observations: int = 0
    control_tokens: int = 0
    drift: list[Drift] = field(default_factory=list)
    state_keys: list[str | None] = field(default_factory=list)  # of the environment, before each turn
    segments: list[Segment] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    tool_results: list[ToolResult] = field(default_factory=list)
    pending: tuple[Segment, ...] = ()
    pending_messages: list[Message] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._append(Segment(Source.PROMPT, self.prompt_ids))

    @property
    def live(self) -> bool:
        return self.stop_reason is None

    @property
    def num_turns(self) -> int:
        return sum(segment.source is Source.MODEL for segment in self.segments)

    def context(self) -> Context:
        """Everything that the model sees next: what it said, what it was told, and the pending observation."""
        pending = (token for segment in self.pending for token in segment.token_ids)
        return Context(self.index, (*self._ids, *pending))

    def history(self) -> History:
        """What is held before an observation is added, for an encoder that renders whole conversations."""
        prompt = [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        return History(tuple(self._ids), (*prompt, *self.messages))

    def room(self, limits: RolloutLimits) -> int:
        """Tokens left behind the last turn, the pending observation counted as used."""
        completion = len(self._ids) - len(self.prompt_ids) + sum(len(segment.token_ids) for segment in self.pending)
        return limits.room(len(self.prompt_ids), completion)

    def add_turn(self, sample: Sample, turn: ParsedTurn) -> None:
        """Append a sampled turn, and with it the observation that it answers."""
        for segment in self.pending:
            self._append(segment)
        self.messages += self.pending_messages
        self.pending, self.pending_messages = (), []
        self._append(Segment(Source.MODEL, tuple(sample.token_ids), sample.logprobs))
        self.state_keys.append(self._ask(state_key))
        self.messages.append(with_call_ids(turn.message, turn.calls, self.num_turns - 1))
        self.calls, self.problem = numbered(turn.calls, self.num_turns - 1), turn.reason

    def job(self) -> ToolJob:
        if self.tool_context is not None:
            self.tool_context.turn = self.num_turns - 1
        return ToolJob(self.calls, self.tools, self.ordered_tools)

    def add_results(self, results: list[ToolResult]) -> None:
        """Record what the calls returned; `observe` decides whether the model ever sees it."""
        self.tool_rounds += 1
        self.tool_results += results
        self.malformed_calls += sum(result.status.was_refused for result in results)

    def observe(self, observation: Observation, results: list[ToolResult]) -> None:
        """Put an observation behind the last turn, pending until the model answers it."""
        self.cut_observations += observation.num_cut
        self.control_tokens += observation.num_control_tokens
        self.drift += observation.drift
        self.pending = observation.segments
        self.pending_messages = [
            {"role": "tool", "name": result.name, "tool_call_id": result.call_id, "content": content}
            for result, content in zip(results, observation.contents, strict=True)
        ]
        self.calls = ()

    def is_done(self) -> bool:
        """Whether the rollout is over by its environment: the episode ended, or it failed when it was asked."""
        return self.environment is not None and (self._ask(is_done) is True or not self.live)

    def finish(self, reason: StopReason, error: str = "") -> None:
        """Record why the rollout ended; the first reason stays."""
        if self.live:
            self.stop_reason, self.error = reason, error

    def freeze(self) -> Trajectory:
        """The finished rollout; a pending observation is not part of it."""
        assert self.stop_reason is not None, f"rollout {self.index} is still live"
        return Trajectory(
            segments=tuple(self.segments),
            stop_reason=self.stop_reason,
            messages=tuple(self.messages),
            tool_results=tuple(self.tool_results),
            prompt=self.prompt,
            error=self.error,
            cut_observations=self.cut_observations,
            control_tokens=self.control_tokens,
            malformed_calls=self.malformed_calls,
            drift=tuple(drift.kind.value for drift in self.drift),
            state_keys=tuple(self.state_keys) if any(key is not None for key in self.state_keys) else (),
        )

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """What the environment answers; None if it fails, which ends the rollout."""
        try:
            return question(self.environment)
        except EnvironmentFailed as failure:
            self.finish(StopReason.ENV_ERROR, str(failure))
            return None

    def _append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._ids.extend(segment.token_ids)


def numbered(calls: tuple[ToolCall, ...], turn: int) -> tuple[ToolCall, ...]:
    """Give calls without an id one of nine letters and digits (some templates allow nothing else)."""
    return tuple(
        call if call.id else ToolCall(f"call{turn:02d}{number:03d}", call.name, call.arguments)
        for number, call in enumerate(calls)
    )


def with_call_ids(message: Message, calls: tuple[ToolCall, ...], turn: int) -> Message:
    """The assistant's message with the same ids on its calls as the results will carry."""
    if not calls:
        return message
    entries = [
        {**entry, "id": call.id} for entry, call in zip(message["tool_calls"], numbered(calls, turn), strict=True)
    ]
    return {**message, "tool_calls": entries}
