"""The nouns that every other module shares. Knows tokens and who wrote them; knows no tensors, tokenizers or tools.

    prompt          model writes           environment answers        model writes
    P P P P P P     c c c c c c E          n t t t t t t n h          a a a E
    0 0 0 0 0 0     1 1 1 1 1 1 1          0 0 0 0 0 0 0 0 0          1 1 1 1      env_mask

Authorship is stored once, as the `Source` of each `Segment`; every mask is a view of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise, repeat
from typing import Any, TypeVar

Value = TypeVar("Value")

Message = dict[str, Any]  # {"role": ..., "content": ..., "tool_calls": [...]}, as in chat templates


class Source(StrEnum):
    """Who wrote a token. Only MODEL tokens were sampled, and only they are ever trained."""

    PROMPT = "prompt"  # everything before the first sampled token
    MODEL = "model"  # sampled, its own end-of-turn token included
    ENV = "env"  # the content of an observation: a tool's result, a retrieved document
    TEMPLATE = "template"  # the scaffold that the chat template writes around an observation


class StopReason(StrEnum):
    """Why a rollout ended. Recorded by the loop when it happens, never guessed from the last token."""

    ANSWERED = "answered"  # the model ended a turn without a call
    MAX_TURNS = "max_turns"  # the model called again after the last allowed round of tools
    LENGTH = "length"  # a turn was cut by a token cap
    CONTEXT_FULL = "context_full"  # the next observation and a short answer no longer fit
    PROMPT_TOO_LONG = "prompt_too_long"  # no room for even one sampled token
    MALFORMED = "malformed"  # too many calls that could not be read
    ENV_DONE = "env_done"  # the environment said that the episode is over
    ENV_ERROR = "env_error"  # the environment failed; nothing about the model follows from this row

    @property
    def unfinished(self) -> bool:
        """True when the rollout was ended from outside, before the model or the environment was done."""
        return self not in (StopReason.ANSWERED, StopReason.ENV_DONE)


class CallStatus(StrEnum):
    """What became of one tool call."""

    OK = "ok"
    ERROR = "error"  # the tool raised
    TIMEOUT = "timeout"  # no answer before the deadline
    UNKNOWN_TOOL = "unknown_tool"  # no tool of that name: never run
    BAD_ARGUMENTS = "bad_arguments"  # arguments that the tool does not take: never run
    MALFORMED = "malformed"  # could not be read: never run
    ABORTED = "aborted"  # the environment itself failed

    @property
    def was_refused(self) -> bool:
        """Whether the call could not be run as it was written, so that nothing was."""
        return self in (CallStatus.UNKNOWN_TOOL, CallStatus.BAD_ARGUMENTS, CallStatus.MALFORMED)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model wrote it.

    Example:
        ToolCall(id="call00000", name="weather", arguments={"city": "Oslo"})
    """

    id: str
    name: str
    arguments: Any  # a dict when the call is legal; whatever was decoded otherwise


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call returned, as the text that the model is shown.

    Example:
        ToolResult(call_id="call00000", name="weather", content='{"temp": 7}', status=CallStatus.OK, latency_s=0.2)
    """

    call_id: str
    name: str
    content: str
    status: CallStatus
    latency_s: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of consecutive tokens with one author.

    Example:
        Segment(Source.MODEL, token_ids=(10, 11), logprobs=(-0.3, -1.2))
    """

    source: Source
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None  # natural log, one per token; only MODEL tokens have them

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"a {self.source} segment has no tokens; leave an empty segment out")
        if self.logprobs is None:
            return
        if self.source is not Source.MODEL:
            raise ValueError(f"a {self.source} segment has log-probs; only tokens that the model sampled have them")
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError(
                f"a {self.source} segment has {len(self.token_ids)} token_ids but {len(self.logprobs)} logprobs; "
                "both must come from the same sampled turn"
            )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished rollout: PROMPT, then MODEL, then ((ENV|TEMPLATE)+, MODEL)*. Other orders cannot be built.

    Example:
        Trajectory(
            segments=(Segment(Source.PROMPT, (1, 2)), Segment(Source.MODEL, (10, 19)), Segment(Source.ENV, (20, 21)),
                      Segment(Source.MODEL, (11, 19))),
            stop_reason=StopReason.ANSWERED,
        )
        .prompt_ids (1, 2)   .completion_ids (10, 19, 20, 21, 11, 19)   .env_mask (1, 1, 0, 0, 1, 1)
    """

    segments: tuple[Segment, ...]
    stop_reason: StopReason
    messages: tuple[Message, ...] = ()  # what follows the prompt: assistant and tool messages; never ends in a tool's
    tool_results: tuple[ToolResult, ...] = ()
    prompt: Any = None  # the prompt as it was given: messages or text
    error: str = ""  # why the environment failed, of a rollout that stopped with ENV_ERROR
    cut_observations: int = 0  # observations shortened to fit
    control_tokens: int = 0  # control tokens found in observations and kept from becoming ids
    malformed_calls: int = 0
    state_keys: tuple[str | None, ...] = ()  # the environment's `state_key()` before each of the model's turns
    drift: tuple[str, ...] = ()  # kinds of `DriftKind`, one for each place where a rendering changed what was held

    def __post_init__(self) -> None:
        check_order([segment.source for segment in self.segments])
        if self.messages and self.messages[-1].get("role") == "tool":
            raise ValueError("the messages end in a tool message, which a reward could take for the model's answer")

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.segments[0].token_ids

    @property
    def completion_segments(self) -> tuple[Segment, ...]:
        return self.segments[1:]

    @property
    def completion_ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(segment.token_ids for segment in self.completion_segments))

    @property
    def sources(self) -> tuple[Source, ...]:
        """The author of each completion token."""
        return self._per_token(segment.source for segment in self.completion_segments)

    @property
    def env_mask(self) -> tuple[int, ...]:
        """Per completion token: 1 where the model sampled it, 0 where anyone else wrote it."""
        return self._per_token(int(segment.source is Source.MODEL) for segment in self.completion_segments)

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """Per completion token: the log-prob recorded while sampling, 0.0 on foreign tokens; None if none was."""
        model_segments = [segment for segment in self.completion_segments if segment.source is Source.MODEL]
        if not model_segments or any(segment.logprobs is None for segment in model_segments):
            return None
        return tuple(
            chain.from_iterable(
                segment.logprobs or (0.0,) * len(segment.token_ids) for segment in self.completion_segments
            )
        )

    @property
    def turn_index(self) -> tuple[int, ...]:
        """Per completion token: which of the model's turns it belongs to, -1 on foreign tokens."""
        return self._per_token(turn for _, turn in self._numbered())

    @property
    def num_turns(self) -> int:
        return sum(segment.source is Source.MODEL for segment in self.segments)

    @property
    def unfinished(self) -> bool:
        return self.stop_reason.unfinished

    def _per_token(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """The value of each completion segment, once for each of its tokens."""
        lengths = (len(segment.token_ids) for segment in self.completion_segments)
        return tuple(chain.from_iterable(map(repeat, values, lengths)))

    def _numbered(self) -> Iterator[tuple[Segment, int]]:
        turn = -1
        for segment in self.completion_segments:
            is_model = segment.source is Source.MODEL
            turn += is_model
            yield segment, turn if is_model else -1


def check_order(sources: list[Source]) -> None:
    """Raise unless the order is PROMPT, then nothing or MODEL ((ENV|TEMPLATE)+ MODEL)*."""
    if not sources or sources[0] is not Source.PROMPT or Source.PROMPT in sources[1:]:
        raise ValueError(f"a trajectory starts with its one prompt segment, found {[str(s) for s in sources]}")
    completion = sources[1:]
    if not completion:
        return
    if completion[0] is not Source.MODEL or completion[-1] is not Source.MODEL:
        raise ValueError(
            f"a completion starts and ends with what the model sampled, found {[str(s) for s in completion]}; "
            "an observation that nothing was sampled after does not belong to it"
        )
    for left, right in pairwise(completion):
        if left is right is Source.MODEL:
            raise ValueError("two model turns follow each other; what one turn sampled is one segment")
