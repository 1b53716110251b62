"""What a reward reads of a rollout: the model's turns, its calls with their results, its final answer. Scores nothing.

    messages   assistant (calls)   tool, tool   assistant          trajectories: with statuses and the stop reason
    turns      Turn(calls, results)             Turn(text)         answer: the last turn's text, or None

The text of an observation never becomes part of a turn's text, so no reward can take it for the model's own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..trajectory import CallStatus, Message, StopReason, ToolCall, ToolResult, Trajectory
from .answer_text import in_pairs
from .columns import rows_of

CALL = re.compile(r"<tool_call>.*?(</tool_call>|$)", re.DOTALL)
THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the model, taken apart.

    Example:
        Turn(calls=(ToolCall("call00000", "add", {"a": 1}),), results=(ToolResult("call00000", "add", "3", ...),))
        Turn(text="3", thinking="one and two")
    """

    text: str = ""  # what it says, without calls and thinking
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()  # in call order; empty where nothing came back
    raw: str = ""  # all of the message's text; thinking that a parser took apart stands between its tags again

    @property
    def unreadable(self) -> bool:
        """Whether it was meant as a call that could not be read."""
        return not self.calls and any(result.status is CallStatus.MALFORMED for result in self.results)

    @property
    def answered_calls(self) -> list[tuple[ToolCall, ToolResult]]:
        """The calls that something came back for."""
        return list(zip(self.calls, self.results, strict=False))


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout as rewards see it.

    Example:
        Rollout(prompt="1 + 2?", turns=(Turn(calls=..., results=...), Turn(text="3")), answer="3", row={"answer": "3"})
    """

    prompt: Any = ""
    turns: tuple[Turn, ...] = ()
    answer: str | None = None  # None: ended from outside, or the last turn holds nothing but calls
    unfinished: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)  # this rollout's entry of every column, TRL's included
    trajectory: Trajectory | None = None  # None under a trainer that passes none

    @property
    def failed(self) -> bool:
        """Whether the infrastructure failed: nothing about the model follows from such a rollout."""
        return self.trajectory is not None and self.trajectory.stop_reason is StopReason.ENV_ERROR

    @property
    def calls(self) -> list[ToolCall]:
        return [call for turn in self.turns for call in turn.calls]

    @property
    def model_text(self) -> str:
        """Everything that the model wrote: the trainer's `model_texts` where there is one, else the messages."""
        given = self.row.get("model_texts")
        return given if isinstance(given, str) else "\n".join(turn.raw for turn in self.turns)

    @property
    def question(self) -> str:
        """The prompt's text without system messages."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(text_of(m.get("content")) for m in self.prompt or () if m.get("role") != "system")


def read_rollouts(columns: Mapping[str, Any]) -> list[Rollout]:
    """The rollouts of a batch, from the keywords that a trainer passes to a reward function.

    With `trajectories` (EnvMaskGRPOTrainer) everything is known. Without (a plain trl.GRPOTrainer) turns come from
    `completions`: calls and results as the messages show them, statuses and a cut by a token cap unknown. A completion
    that is a text is one turn; `model_texts`, where given, is read in its place.

    Raises:
        ValueError: keywords that are no columns of rollouts, or a trajectory whose messages do not show its turns.
    """
    rows = rows_of(columns)
    if columns.get("trajectories") is None:
        return [from_completion(row["completions"], row) for row in rows]
    return [from_trajectory(index, row["trajectories"], row) for index, row in enumerate(rows)]


def from_trajectory(index: int, trajectory: Trajectory, row: Mapping[str, Any]) -> Rollout:
    messages = [message for message in trajectory.messages if message.get("role") == "assistant"]
    if len(messages) != trajectory.num_turns:
        raise ValueError(
            f"rollout {index} has {trajectory.num_turns} model turns but {len(messages)} assistant messages; "
            "rewards read the messages, so a trajectory needs one for each turn"
        )
    turns, results = [], list(trajectory.tool_results)
    for message in messages:
        calls = calls_of(message)
        unreadable = not calls and bool(results) and results[0].status is CallStatus.MALFORMED
        taken = len(calls) or int(unreadable)
        turns.append(read_turn(message, calls, tuple(results[:taken])))
        results = results[taken:]
    unfinished = trajectory.unfinished or bool(row.get("unfinished"))
    prompt = trajectory.prompt if trajectory.prompt is not None else row.get("prompts", "")
    return Rollout(prompt, tuple(turns), final_answer(turns, unfinished), unfinished, row, trajectory)


def from_completion(completion: str | Sequence[Message], row: Mapping[str, Any]) -> Rollout:
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": row.get("model_texts", completion)}]
    turns: list[Turn] = []
    for position, message in enumerate(completion):
        if message.get("role") != "assistant":
            continue
        calls, following = calls_of(message), completion[position + 1 :]
        answers = [m for m in following[: len(calls)] if m.get("role") == "tool"]
        results = tuple(
            ToolResult(call.id, call.name, text_of(answer.get("content")), CallStatus.OK, latency_s=0.0)
            for call, answer in zip(calls, answers, strict=False)
        )
        turns.append(read_turn(message, calls, results))
    last = completion[-1] if completion else {}
    unfinished = bool(row.get("unfinished")) or last.get("role") == "tool" or bool(last.get("tool_calls"))
    answer = final_answer(turns, unfinished or last.get("role") != "assistant")
    return Rollout(row.get("prompts", ""), tuple(turns), answer, unfinished, row)


def read_turn(message: Message, calls: tuple[ToolCall, ...], results: tuple[ToolResult, ...]) -> Turn:
    apart = "".join(str(message.get(key) or "") for key in THINKING_KEYS)
    raw = (f"<think>{apart}</think>" if apart else "") + text_of(message.get("content"))
    thinking, text = split_thinking(raw)
    return Turn(CALL.sub("", text).strip(), thinking, calls, results, raw)


def split_thinking(text: str) -> tuple[str, str]:
    """(thinking, the rest). A template may have opened the block, and a model may never close it.

    Example:
        split_thinking("<think>1 + 2</think>3")   ("1 + 2", "3")
        split_thinking("1 + 2</think>3")          ("1 + 2", "3")
        split_thinking("<think>1 + 2 = 3")        ("1 + 2 = 3", "")
    """
    thinking, kept, position = "", [], 0
    for start, content, content_end, end in in_pairs(text, "<think>", "</think>"):
        thinking += text[content:content_end]
        kept.append(text[position:start])
        position = end
    text = "".join([*kept, text[position:]])
    before, closed, after = text.rpartition("</think>")
    text, _, never_closed = after.partition("<think>")
    return thinking + (before if closed else "") + never_closed, text


def final_answer(turns: Sequence[Turn], unfinished: bool) -> str | None:
    """The last turn's text, "" if it ended without saying anything; None if there is no answer at all."""
    if unfinished or not turns:
        return None
    return turns[-1].text or (None if turns[-1].calls else "")


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """The calls that a message shows; one that a parser read in part has no name, and is of no tool."""
    entries = message.get("tool_calls") or ()
    return tuple(map(call_of, entries if isinstance(entries, list | tuple) else (entries,)))


def call_of(entry: Any) -> ToolCall:
    """One call, its arguments decoded where they are the JSON text of an object, as OpenAI's format writes them."""
    entry = entry if isinstance(entry, Mapping) else {"arguments": entry}
    function = entry.get("function", entry)
    function = function if isinstance(function, Mapping) else {"arguments": function}
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            decoded = json.loads(arguments)
            arguments = decoded if isinstance(decoded, dict) else arguments
    return ToolCall(str(entry.get("id") or ""), name if isinstance(name, str) else "", arguments)


def text_of(content: Any) -> str:
    """A message's content as text; of content blocks, the text ones."""
    if isinstance(content, list):
        return "".join(str(block.get("text") or "") for block in content if isinstance(block, dict))
    return "" if content is None else str(content)
