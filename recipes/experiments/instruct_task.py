"""The weather and calculator task for a model with a tokenizer of its own: short reports, a short prompt. No trainer.

<|im_start|>system
weather(city), calculator(expression)<|im_end|>
<|im_start|>user
How warm is Oslo?<|im_end|>
<|im_start|>assistant
<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call><|im_end|>
<|im_start|>user
<tool_response>{"city":"Oslo","wind":41,"temperature":27}</tool_response><|im_end|>
<|im_start|>assistant
27<|im_end|>
"""

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from envmask_trl import KeptCacheSampler, RolloutLimits, Trajectory, run_rollouts

from ..weather_calculator.demonstrations import write_demonstrations
from ..weather_calculator.evaluate import MAX_CALLS, MAX_MALFORMED_CALLS, Played, judge
from ..weather_calculator.tasks import make_rows, make_tools
from ..weather_calculator.tokenizer import CHAT_TEMPLATE, RESPONSE_TEMPLATE

IRRELEVANT = 1  # fields of a report beside city and temperature
MAX_TURN_TOKENS = 56  # the longest turn that is needed has about 45
MAX_COMPLETION_LENGTH = 384  # three calls, two short reports and an answer have about 230
TIDY_SHARE = 0.75  # of the demonstrations; the others are of mixed quality
LIMITS: dict[str, Any] = {  # of `RolloutLimits`, and of the trainer's config
    "max_completion_length": MAX_COMPLETION_LENGTH,
    "max_turn_tokens": MAX_TURN_TOKENS,
    "max_tool_calling_iterations": MAX_CALLS,
    "max_malformed_calls": MAX_MALFORMED_CALLS,
}


def shortened(report: str) -> str:
    """A weather report with its city, its temperature and `IRRELEVANT` further fields, in their order.

    Example:
        shortened('{"wind":41,"city":"Oslo","rain":73,"temperature":27}')
        -> '{"wind":41,"city":"Oslo","temperature":27}'
    """
    values = json.loads(report)
    further = [name for name in values if name not in ("city", "temperature")][:IRRELEVANT]
    kept = {name: value for name, value in values.items() if name in ("city", "temperature", *further)}
    return json.dumps(kept, separators=(",", ":"))


def short_tools(day: str) -> list[Callable[..., str]]:
    """The quickstart's two tools, with short reports."""
    report, calculator = make_tools(day)

    @wraps(report)
    def weather(city: str) -> str:
        return shortened(report(city))

    return [weather, calculator]


def short_demonstrations(path: Path, *, count: int, seed: int) -> list[dict]:
    """`count` demonstrations of 0 to 2 calls with short reports: good ones, then some of mixed quality."""
    tidy = round(TIDY_SHARE * count)
    rows = write_demonstrations(path, tidy=tidy, mixed=count - tidy, seed=seed)
    return [{"messages": list(map(short_message, row["messages"]))} for row in rows]


def short_message(message: dict) -> dict:
    if message["role"] != "tool" or message.get("name") != "weather":
        return message
    return {**message, "content": shortened(message["content"])}


def load_model(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in float32, and its tokenizer with the quickstart's chat template.

    Its own template is replaced: some know no tools, and each token of a long system prompt costs a step.

    Raises:
        ValueError: the tokenizer lacks the two control tokens of that template.
    """
    tokenizer = AutoTokenizer.from_pretrained(path)
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in ("<|im_start|>", "<|im_end|>") if token not in vocabulary]:
        raise ValueError(
            f"the tokenizer of {path} has no token {missing[0]}, expected a model that was trained on ChatML"
        )
    tokenizer.eos_token = "<|im_end|>"
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id) and tokenizer.unk_token is not None:
        tokenizer.pad_token = tokenizer.unk_token
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def held_out(seed: int, *, each: int) -> list[dict]:
    """Questions of a day that no training has seen, `each` of every number of calls."""
    return make_rows(dict.fromkeys(range(4), each), day=f"test {seed}", seed=seed)


def play_short(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict], *, seed: int, greedy: bool
) -> tuple[list[Played], list[Trajectory]]:
    """One rollout for each held-out question, sampled at temperature 1 or greedy."""
    model.eval()
    trajectories = run_rollouts(
        [row["prompt"] for row in rows],
        tokenizer=tokenizer,
        sampler=KeptCacheSampler(model, tokenizer, temperature=1.0, do_sample=not greedy),
        tools=short_tools(f"test {seed}"),
        limits=RolloutLimits(**LIMITS),
    )
    return [judge(rollout, row) for rollout, row in zip(trajectories, rows, strict=True)], trajectories
