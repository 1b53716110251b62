"""What is shown of a rollout, read from its saved row. Knows rows and tokens: no markup, no files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..trajectory import Source, StopReason

COLUMNS = ("prompt_ids", "completion_ids", "sources", "env_mask", "turn_index", "stop_reason")


@dataclass(frozen=True, slots=True)
class Token:
    """One token, and all that is known of it.

    Example:
        Token(id=9707, text="Hello", source=Source.MODEL, mask=1, turn=0, logprob=-0.31)
    """

    id: int
    text: str
    source: Source
    mask: int  # 1 keeps it in the loss
    turn: int = -1  # of the model's turns, from 0; -1 on foreign tokens
    logprob: float | None = None

    @property
    def about(self) -> str:
        """The facts of the token, one a line."""
        turn = f", turn {self.turn}" if self.turn >= 0 else ""
        logprob = f"log-prob {self.logprob:.4f}" if self.logprob is not None else "no log-prob"
        trained = "trained" if self.mask else "not trained"
        return f"{self.text!r}\nid {self.id}\n{self.source}{turn}\n{logprob}\nmask {self.mask}: {trained}"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout: its facts as (name, value), and its tokens.

    Example:
        Rollout(facts=(("step", "12"), ("stop", "answered"), ("advantage", "+0.71")), prompt=(...), completion=(...))
    """

    facts: tuple[tuple[str, str], ...]
    prompt: tuple[Token, ...]
    completion: tuple[Token, ...]

    @property
    def trained(self) -> int:
        return sum(token.mask for token in self.completion)

    @property
    def counts(self) -> str:
        return f"{len(self.prompt)} prompt + {len(self.completion)} completion tokens, {self.trained} trained"


def read_row(row: Mapping[str, Any], texts: Mapping[int, str]) -> Rollout:
    """The rollout of a checked row; `texts` has the text of every id in it."""
    ids, logprobs = row["completion_ids"], row.get("logprobs")
    mask_of_the_loss = row.get("loss_mask") or row["env_mask"]  # they differ for rows that a policy left out
    columns = (ids, row["sources"], mask_of_the_loss, row["turn_index"], logprobs or [None] * len(ids))
    completion = tuple(
        Token(token, texts[token], Source(source), mask, turn, logprob if source == Source.MODEL else None)
        for token, source, mask, turn, logprob in zip(*columns, strict=True)
    )
    prompt = tuple(Token(token, texts[token], Source.PROMPT, mask=0) for token in row["prompt_ids"])
    return Rollout(_facts(row), prompt, completion)


def _facts(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    facts = [("step", str(row["step"]))] if row.get("step") is not None else []
    reason = StopReason(row["stop_reason"])
    facts.append(("stop", f"{reason}{' (unfinished)' if reason.unfinished else ''}"))
    rewards, advantage = row.get("rewards") or {}, row.get("advantage")
    facts += [(name, "none" if value is None else f"{value:.4g}") for name, value in rewards.items()]
    return (*facts, ("advantage", f"{advantage:+.4g}")) if advantage is not None else tuple(facts)


def check_row(number: int, row: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the row unless it has its columns, and they have one length."""
    missing = [name for name in COLUMNS if name not in row]
    if missing:
        raise ValueError(f"row {number} has no {', '.join(missing)}; expected a row as `load_rollouts` returns it")
    expected = len(row["completion_ids"])
    for name in ("sources", "env_mask", "loss_mask", "turn_index", "logprobs"):
        values = row.get(name)
        if values is not None and len(values) != expected:
            raise ValueError(
                f"row {number}: {name} has {len(values)} values but completion_ids has {expected}; "
                "both must come from the same rollout"
            )
