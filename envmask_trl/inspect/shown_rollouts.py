"""What is shown of a rollout, read from its saved row. Knows rows and tokens: no markup, no files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..trajectory import CallStatus, Source, StopReason

COLUMNS = ("prompt_ids", "completion_ids", "sources", "env_mask", "turn_index", "stop_reason")
PARALLEL = ("sources", "env_mask", "loss_mask", "turn_index", "logprobs", "advantage")


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
class Rollout:
    """One checked row of `load_rollouts`, with the text of every id in it.

    Example:
        Rollout({"prompt_ids": [9707], "completion_ids": [12], "sources": ["model"], ...}, {9707: "Hello", 12: "-"})
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


def check_row(number: int, row: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the row unless it has its columns, and they have one length."""
    missing = [name for name in COLUMNS if name not in row]
    if missing:
        raise ValueError(f"row {number} has no {', '.join(missing)}; expected a row as `load_rollouts` returns it")
    expected = len(row["completion_ids"])
    for name in PARALLEL:
        values = row.get(name)
        if isinstance(values, list | tuple) and len(values) != expected:
            raise ValueError(
                f"row {number}: {name} has {len(values)} values but completion_ids has {expected}; "
                "both must come from the same rollout"
            )
