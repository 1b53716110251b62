"""What is played: prompts, tools, and the script of every rollout. Knows text and ids: no model, no trainer.

prompt       a manual that all questions share, and a question that a group shares
completion   A letters <tool_call>{"name": "lookup", ...}</tool_call> E   answer of the tool   letters <tool_call> ... E
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..weather_calculator.tokenizer import train_tokenizer
from .policy import FREE, Script, Turns

GROUP = 8  # rollouts of one question
TAGS = "ABCDEFGH"  # the first token of each member of a group, so that no two go on alike
WORDS = ("harbour", "lantern", "meadow", "copper", "window", "thunder", "garden", "river", "market", "silver")
KEY = '{"key": "%d"}'  # the arguments of a call
QUESTION_WORDS = 12
SHORTEST, LONGEST = 8, 48  # letters of a turn before its call


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything.

    Example:
        Size(rollouts=64, turns=6, prompt_tokens=300, model="small")
    """

    rollouts: int = 64
    turns: int = 6
    prompt_tokens: int = 300
    model: str = "small"
    micro_batch: int = 64  # rows
    latency_s: float = 0.0  # of a tool call
    letters: tuple[int, int] = (SHORTEST, LONGEST)  # of a turn

    def smaller(self, **changes: Any) -> "Size":
        return replace(self, **changes)


@dataclass(slots=True)
class Workload:
    """Everything that both trainers are given."""

    model: str
    tokenizer: PreTrainedTokenizerBase
    tools: list[Callable[..., Any]]
    prompts: list[list[dict[str, str]]]  # one per group
    script: Script
    turns: int
    micro_batch: int
    calls: list[tuple[float, float]] = field(default_factory=list)  # start and end of each tool call in seconds

    @property
    def rollouts(self) -> int:
        return GROUP * len(self.prompts)

    def waited_s(self, sampling: Sequence[tuple[float, float]]) -> float:
        """Seconds in which a tool was running and nothing was sampled."""
        return covered_s([*self.calls, *sampling]) - covered_s(sampling)


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the spans.

    Example:
        covered_s([(0.0, 0.2), (0.1, 0.3), (1.0, 1.5)])  # 0.8
    """
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return sum(end - start for start, end in merged)


def make_workload(size: Size, *, seed: int = 0) -> Workload:
    """Questions, a tool that answers after `latency_s`, and turns of uniformly random length."""
    rng = random.Random(seed)
    calls: list[tuple[float, float]] = []

    def lookup(key: str) -> str:
        """Look something up.

        Args:
            key: What to look up.
        """
        start = time.perf_counter()
        time.sleep(size.latency_s)
        words = random.Random(key).choices(WORDS, k=6)
        calls.append((start, time.perf_counter()))
        return f"{key}: {' '.join(words)}"

    tokenizer = train_tokenizer(["lookup key " + " ".join(WORDS), "system\nuser\nassistant\n", call("lookup", KEY)] * 4)
    prompts = [
        [
            {"role": "system", "content": manual(tokenizer, size.prompt_tokens)},
            {"role": "user", "content": " ".join(rng.choices(WORDS, k=QUESTION_WORDS))},
        ]
        for _ in range(size.rollouts // GROUP)
    ]
    members = [
        [written_turns(tokenizer, tag, size.turns, size.letters, rng) for tag in TAGS] for _ in range(len(prompts))
    ]
    script = make_script(tokenizer, prompts, [lookup], members)
    return Workload(size.model, tokenizer, [lookup], prompts, script, size.turns, size.micro_batch, calls)


def manual(tokenizer: PreTrainedTokenizerBase, prompt_tokens: int) -> str:
    """Words that make the prompt about `prompt_tokens` long, with its question and the template's own tokens."""
    words = random.Random(0).choices(WORDS, k=prompt_tokens)
    ids = tokenizer(" ".join(words))["input_ids"]
    around = QUESTION_WORDS + 24
    return str(tokenizer.decode(ids[: max(4, prompt_tokens - around)]))


def written_turns(
    tokenizer: PreTrainedTokenizerBase, tag: str, turns: int, letters: tuple[int, int], rng: random.Random
) -> Turns:
    """`turns` turns of which all but the last call the tool."""
    texts = [call("lookup", KEY % rng.randint(100, 999)) for _ in range(turns - 1)] + ["<|im_end|>"]
    written = [[FREE] * rng.randint(*letters) + tokenizer(text)["input_ids"] for text in texts]
    written[0] = tokenizer(tag)["input_ids"] + written[0]
    return written


def call(name: str, arguments: str) -> str:
    """A turn's call, as the quickstart's template writes it, and the turn's end."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call><|im_end|>'


def make_script(
    tokenizer: PreTrainedTokenizerBase, prompts: list, tools: list[Any], members: list[list[Turns]]
) -> Script:
    ids = [
        tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, return_dict=False)
        for prompt in prompts
    ]
    texts = ((token_id, str(tokenizer.decode([token_id]))) for token_id in range(len(tokenizer)))
    letters = [token_id for token_id, text in texts if text.isascii() and text.islower() and text.isalpha()]
    assert tokenizer.pad_token_id is not None and isinstance(tokenizer.eos_token_id, int)
    turns = {tuple(prompt): group for prompt, group in zip(ids, members, strict=True)}
    assert len(turns) == len(prompts), "two groups have one prompt"
    return Script(turns, tokenizer.eos_token_id, tokenizer.pad_token_id, letters)


def finished_rows(workload: Workload, *, seed: int = 0) -> dict[str, list[list[int]]]:
    """The rollouts as they could have been, without playing them: columns of `rollout_func`."""
    rng = random.Random(seed)
    columns: dict[str, list[list[int]]] = {"prompt_ids": [], "completion_ids": [], "env_mask": []}
    observation = workload.tokenizer(
        "\n<|im_start|>user\n<tool_response>100: " + " ".join(WORDS[:6]) + "</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )["input_ids"]
    for prompt, members in workload.script.turns.items():
        for turns in members:
            filled = [[rng.choice(workload.script.letters) if t == FREE else t for t in turn] for turn in turns]
            ids, mask = list(filled[0]), [1] * len(filled[0])
            for _, turn in pairwise(filled):
                ids += observation + turn
                mask += [0] * len(observation) + [1] * len(turn)
            for name, values in zip(columns, (list(prompt), ids, mask), strict=True):
                columns[name].append(values)
    return columns
