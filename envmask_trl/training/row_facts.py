"""What is worth logging of one rollout, gathered over all processes. Knows trajectories: no metrics, no model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate.utils import gather_object

from ..rollout.observations import ObservationEncoder
from ..trajectory import CallStatus, Source, StopReason, ToolCall, Trajectory


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One call of a rollout.

    Example:
        CallFacts("weather", CallStatus.OK, latency_s=0.2)
    """

    name: str  # as the model wrote it: of an unknown tool it may be anything
    status: CallStatus
    latency_s: float  # 0.0 for a call that was never run


@dataclass(frozen=True, slots=True)
class RowFacts:
    """One rollout, small enough to be sent to all processes.

    Example:
        RowFacts(prompt_tokens=30, completion_tokens=80, sampled_tokens=25, turns=2, stop_reason=StopReason.ANSWERED,
                 unfinished=False, calls=(CallFacts("weather", CallStatus.OK, 0.2),))
    """

    prompt_tokens: int
    completion_tokens: int
    sampled_tokens: int
    turns: int
    stop_reason: StopReason
    unfinished: bool
    cut_observations: int = 0
    control_tokens: int = 0
    drift: tuple[str, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    plays_environment: bool = False  # the model itself wrote what opens an observation
    error: str = ""  # why its environment failed


def gather_facts(
    trajectories: Sequence[Trajectory], columns: Mapping[str, list], *, tokenizer: Any, openings: Collection[str]
) -> list[RowFacts]:
    """The facts of all rollouts of all processes; one collective, so every process must call it.

    Args:
        trajectories: the rollouts of this process.
        columns: their rows after packing.
        tokenizer: for the text of the model's turns.
        openings: texts with which only the chat template begins an observation, see `observation_openings`.
    """
    rows = zip(trajectories, columns["prompt_ids"], columns["env_mask"], columns["unfinished"], strict=True)
    facts = [
        RowFacts(
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(env_mask),
            sampled_tokens=sum(env_mask),
            turns=trajectory.num_turns,
            stop_reason=trajectory.stop_reason,
            unfinished=unfinished,
            cut_observations=trajectory.cut_observations,
            control_tokens=trajectory.control_tokens,
            drift=trajectory.drift,
            calls=tuple(CallFacts(r.name, r.status, r.latency_s) for r in trajectory.tool_results),
            plays_environment=plays_environment(trajectory, tokenizer, openings),
            error=trajectory.error,
        )
        for trajectory, prompt_ids, env_mask, unfinished in rows
    ]
    return list(gather_object(facts))


def plays_environment(trajectory: Trajectory, tokenizer: Any, openings: Collection[str]) -> bool:
    """Whether a turn of the model contains what opens an observation, control tokens included."""
    if not openings:
        return False
    turns = [segment.token_ids for segment in trajectory.completion_segments if segment.source is Source.MODEL]
    texts = [str(tokenizer.decode(list(token_ids))) for token_ids in turns]
    return any(opening in text for opening in openings for text in texts)


def observation_openings(encoder: ObservationEncoder | None, tool_names: Collection[str]) -> frozenset[str]:
    """What the chat template writes right before a tool's result and nowhere in a model's turn.

    It is the last line before the content, up to the call's id if the template shows that.

    Example:
        frozenset({"<tool_response>"})
    """
    if encoder is None:
        return frozenset()
    call_id = "call00000"
    before = [encoder.renderer.block([ToolCall(call_id, name, {})]).pieces[0] for name in tool_names]
    lines = (text.split(call_id)[0].strip().splitlines() for text in before)
    return frozenset(found[-1].strip() for found in lines if found)
