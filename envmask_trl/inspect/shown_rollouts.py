"""What is shown of a rollout, read from its saved row. Knows rows and tokens: no markup, no files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..trajectory import CallStatus, Source, StopReason

COLUMNS = ("prompt_ids", "completion_ids", "sources", "env_mask", "turn_index", "stop_reason")
PARALLEL = ("sources", "env_mask", "loss_mask", "turn_index", "logprobs", "advantage")

AUTHORS = {str(source) for source in Source}
NO_NUMBERS = {type(None), float, str}
A_ROW = "expected a row as `load_rollouts` returns it"
RESULT_FIELDS = {"call_id", "name", "content", "status", "latency_s"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token as it is printed.

    Example:
        Token(text="Hello", source=Source.MODEL, mask=1)
    """

    text: str
    source: Source
    mask: int  # 1 keeps it in the loss


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """One checked row of `load_rollouts`, with the text of every id in it.

    Example:
        ShownRollout({"prompt_ids": [97], "completion_ids": [12], "sources": ["model"], ...}, {97: "Hello", 12: "-"})
        .facts (("step", "12"), ("stop", "answered"), ("correct", "1"), ("advantage", "+0.71"))
    """

    row: Mapping[str, Any]
    texts: Mapping[int, str]

    @property
    def mask(self) -> list[int]:
        """Per completion token: 1 keeps it in the loss; `loss_mask` where a policy left rows out of it."""
        return self.row.get("loss_mask") or self.row["env_mask"]

    @property
    def trained(self) -> int:
        return sum(self.mask)

    @property
    def tokens(self) -> list[Token]:
        """The prompt's tokens, then the completion's."""
        prompt = [Token(self.texts[token], Source.PROMPT, 0) for token in self.row["prompt_ids"]]
        columns = zip(self.row["completion_ids"], self.row["sources"], self.mask, strict=True)
        return prompt + [Token(self.texts[token], Source(source), mask) for token, source, mask in columns]

    @property
    def counts(self) -> str:
        prompt, completion = len(self.row["prompt_ids"]), len(self.row["completion_ids"])
        return f"{prompt} prompt + {completion} completion tokens, {self.trained} trained"

    @property
    def tools(self) -> list[str]:
        """Names of the tools that were called, each once: those that ran, and those that the model only asked for."""
        calls = [call for message in self.messages for call in message.get("tool_calls") or ()]
        asked = [call.get("function", call).get("name") for call in calls]
        ran = [result["name"] for result in self.tool_results]
        return list(dict.fromkeys(str(name) for name in (*ran, *asked)))

    @property
    def failed_calls(self) -> int:
        return sum(result["status"] != CallStatus.OK for result in self.tool_results)

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        return self.row.get("messages") or []

    @property
    def tool_results(self) -> list[Mapping[str, Any]]:
        return self.row.get("tool_results") or []

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What is known of the whole rollout, as (name, value)."""
        facts = [("step", str(self.row["step"]))] if self.row.get("step") is not None else []
        reason = StopReason(self.row["stop_reason"])
        facts.append(("stop", f"{reason}{' (unfinished)' if reason.unfinished else ''}"))
        rewards = self.row.get("rewards") or {}
        facts += [(name, "none" if value is None else f"{value:.4g}") for name, value in rewards.items()]
        return (*facts, *self._advantage_fact())

    def _advantage_fact(self) -> list[tuple[str, str]]:
        """One number, or for credit per token the smallest and largest one that is trained."""
        advantage = self.row.get("advantage")
        if not isinstance(advantage, list):
            return [("advantage", f"{advantage:+.4g}")] if advantage is not None else []
        trained = [value for value, keep in zip(advantage, self.mask, strict=True) if keep and not math.isnan(value)]
        return [("advantage", f"{min(trained):+.4g} to {max(trained):+.4g}")] if trained else []


def check_is_row(number: int, row: Any) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"row {number} is a {type(row).__name__}; {A_ROW}")


def check_values(number: int, row: Mapping[str, Any]) -> None:
    """Raise a ValueError where what stands for a token, or for how the rollout ended, is none of what it can be."""
    for name in COLUMNS[:-1]:
        values = row[name]
        if not isinstance(values, list | tuple):
            raise ValueError(f"row {number}: {name} is {echo(values)}, expected a list; {A_ROW}")
        strange = set(values) - AUTHORS if name == "sources" else NO_NUMBERS & {type(value) for value in values}
        if strange:
            found = echo(next(value for value in values if value in strange or type(value) in strange))
            wanted = "the name of an author" if name == "sources" else "whole numbers"
            raise ValueError(f"row {number}: {name} has {found}, expected {wanted}; {A_ROW}")
    if (lowest := min((*row["prompt_ids"], *row["completion_ids"]), default=0)) < 0:
        raise ValueError(f"row {number} has the token id {lowest}, expected ids of a vocabulary; {A_ROW}")
    if row["stop_reason"] not in set(StopReason):
        reasons = ", ".join(StopReason)
        raise ValueError(f"row {number}: stop_reason is {echo(row['stop_reason'])}, expected one of {reasons}")


def echo(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def are_messages(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value))


def are_results(value: Any) -> bool:
    return are_messages(value) and all(set(each) >= RESULT_FIELDS for each in value or ())


def are_rewards(value: Any) -> bool:
    numbers = isinstance(value, Mapping) and all(isinstance(each, int | float | None) for each in value.values())
    return value is None or numbers


def is_advantage(value: Any) -> bool:
    return isinstance(value, int | float | list | tuple | None)


CONTENTS = (
    ("messages", "a list of messages", are_messages),
    ("tool_results", "a list of results", are_results),
    ("rewards", "numbers by the names of functions", are_rewards),
    ("advantage", "a number, or one per completion token", is_advantage),
)


def check_row(number: int, row: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the row unless it has its columns, of their types and of one length."""
    check_is_row(number, row)
    missing = [name for name in COLUMNS if row.get(name) is None]
    if missing:
        raise ValueError(f"row {number} has no {', '.join(missing)}; {A_ROW}")
    check_values(number, row)
    for name, wanted, fits in CONTENTS:
        if not fits(row.get(name)):
            raise ValueError(f"row {number}: {name} is {echo(row[name])}, expected {wanted}; {A_ROW}")
    expected = len(row["completion_ids"])
    for name in PARALLEL:
        values = row.get(name)
        if isinstance(values, list | tuple) and len(values) != expected:
            raise ValueError(
                f"row {number}: {name} has {len(values)} values but completion_ids has {expected}; "
                "both must come from the same rollout"
            )
