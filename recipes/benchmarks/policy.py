"""A model whose turns are written beforehand, for both trainers alike. Knows ids: no tools, no text, no trainer.

script of a row   A ? ? ? ? c c c E   ? ? ? c c c E   ? ? ? E      ? is the model's own choice among plain letters

Forced is which tokens may be chosen, nothing else: `generate`, its other processors and the sampling run as always.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, Qwen3Config, Qwen3ForCausalLM

FREE = -1  # in a script: whatever the model likes best

Turns = list[list[int]]


@dataclass(slots=True)
class Script:
    """What every rollout writes, found by its prompt and by its first token, which no other member of its group has.

    Example:
        Script({(1, 2, 3): [[[10, -1, 19], [11, 19]], [[12, 19]]]}, eos_id=19, pad_id=0, letters=[13, 14])

    Args:
        turns: for each prompt, for each member of its group, its turns; a turn ends with `eos_id`.
        eos_id: ends a turn of the model, and an observation too.
        pad_id: stands left of a row, if the row's own first token does not.
        letters: ids that a free token may be.
    """

    turns: dict[tuple[int, ...], list[Turns]]
    eos_id: int
    pad_id: int
    letters: list[int]

    def next_turns(self, history: Tensor, width: int) -> Iterator[list[int]]:
        """The turn that each row is writing: the rows began it with `width` columns, see `ScriptedTurn`."""
        lengths = sorted({len(prompt) for prompt in self.turns})
        seen: Counter[tuple[int, ...]] = Counter()
        for row in history.tolist():
            start = next(column for column, token in enumerate(row) if token != row[0])
            start -= row[0] != self.pad_id  # padded with its own first token
            prompt = next(key for n in lengths if (key := tuple(row[start : start + n])) in self.turns)
            completion = row[start + len(prompt) :]
            members = self.turns[prompt]
            member = next(turns for turns in members if turns[0][0] == completion[0]) if completion else None
            member = member or members[seen[prompt] % len(members)]
            seen[prompt] += 1
            turn = row[start + len(prompt) : width].count(self.eos_id) // 2
            yield member[min(turn, len(member) - 1)]


class ScriptedTurn(LogitsProcessor):
    """Leaves every row of one `generate` call the choice that its script leaves it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.width = self.rows = 0
        self.turns: Tensor | None = None  # [R, longest turn]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.width = self.width or input_ids.size(1)
        if self.turns is None or self.rows != len(input_ids):  # rows that stopped have left
            self.rows, self.turns = len(input_ids), self.padded(input_ids)
        column = min(input_ids.size(1) - self.width, self.turns.size(1) - 1)
        wanted = self.turns[:, column : column + 1]
        allowed = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, wanted.clamp(min=0), wanted != FREE)
        allowed[:, self.script.letters] |= wanted == FREE
        return scores.masked_fill(~allowed, -torch.inf)

    def padded(self, input_ids: Tensor) -> Tensor:
        turns = list(self.script.next_turns(input_ids[:, : self.width + 1], self.width))
        longest = max(map(len, turns))
        return torch.tensor(
            [turn + [self.script.eos_id] * (longest - len(turn)) for turn in turns], device=input_ids.device
        )


@dataclass(slots=True)
class ScriptedCalls:
    """When each `generate` call began and ended, in seconds; one call is one turn of all rollouts that are asked."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [end - start for start, end in self.spans]


class ScriptedPolicy(Qwen3ForCausalLM):
    """Qwen3 that follows a script when it generates, and is trained as any other.

    Example:
        policy = ScriptedPolicy(config).following(script)
        policy.generate(input_ids=prompts)
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.script: Script | None = None
        self.calls = ScriptedCalls()

    def following(self, script: Script) -> "ScriptedPolicy":
        self.script = script
        return self

    def generate(self, **kwargs: Any) -> Any:
        assert self.script is not None, "call following(script) first"
        start = time.perf_counter()
        output = super().generate(logits_processor=LogitsProcessorList([ScriptedTurn(self.script)]), **kwargs)
        self.calls.spans.append((start, time.perf_counter()))
        return output
