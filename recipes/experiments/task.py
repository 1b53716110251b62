"""The quickstart's task with weather reports of three lengths, and an SFT checkpoint for each. Knows data, no trainer.

observation  what the weather tool answers                              tokens
number       27                                                              2
report       {"city":"Oslo","wind":41,"temperature":27,...}, ten fields     30
long         the same and "hourly":[41,63,...], sixteen numbers             79
"""

import json
import random
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from ..models import quickstart_model
from ..weather_calculator.demonstrations import tokenizer_texts, write_demonstrations
from ..weather_calculator.quickstart import SIZES, save
from ..weather_calculator.tasks import make_rows, make_tools
from ..weather_calculator.tokenizer import train_tokenizer
from ..weather_calculator.warm_start import BATCH_SIZE, warm_start

HOURLY_PER_FIELD = 2  # numbers more for each irrelevant field, so that demonstrations start short here too
QUESTIONS_PER_STEP = {0: 1, 1: 2, 2: 2, 3: 3}  # by calls: the same in each step, so that steps can be compared
QUICK = {"tidy_steps": 100, "mixed_steps": 10}  # of the warm start: some rollouts then earn more than others
OBSERVATIONS = ("number", "report", "long")


def training_day(seed: int) -> str:
    return f"training {seed}"


def test_day(seed: int) -> str:
    return f"test {seed}"


def resized(report: str, observation: str) -> str:
    """The weather report as the tool of this observation length writes it; always the same for one report.

    Example:
        resized('{"city":"Oslo","wind":41,"temperature":27}', "number") -> "27"
    """
    if observation == "report":
        return report
    values = json.loads(report)
    if observation == "number":
        return str(values["temperature"])
    rng = random.Random(report)
    hourly = [rng.randint(10, 99) for _ in range(HOURLY_PER_FIELD * (len(values) - len(("city", "temperature"))))]
    return json.dumps(values | {"hourly": hourly}, separators=(",", ":"))


def tools_of(observation: str, day: str) -> list[Callable[..., str]]:
    """The quickstart's two tools; the weather tool's answer has the length of `observation`."""
    report, calculator = make_tools(day)

    @wraps(report)
    def weather(city: str) -> str:
        return resized(report(city), observation)

    return [weather, calculator]


def resized_row(row: dict[str, Any], observation: str) -> dict[str, Any]:
    """A demonstration in which the weather reports have the length of `observation`."""
    messages = [
        {**message, "content": resized(message["content"], observation)}
        if message["role"] == "tool" and message.get("name") == "weather"
        else message
        for message in row["messages"]
    ]
    return {**row, "messages": messages}


def training_rows(seed: int, *, steps: int) -> list[dict[str, Any]]:
    """The questions of `steps` GRPO steps, the same for every arm of a seed."""
    return [
        row
        for step in range(steps)
        for row in make_rows(QUESTIONS_PER_STEP, day=training_day(seed), seed=f"{seed}/{step}")
    ]


def held_out_rows(seed: int, *, each: int) -> list[dict[str, Any]]:
    """Questions of a day that no training has seen, `each` of every number of calls."""
    return make_rows(dict.fromkeys(QUESTIONS_PER_STEP, each), day=test_day(seed), seed=seed)


def make_checkpoint(observation: str, seed: int, folder: Path, *, quick: bool = False) -> Path:
    """The quickstart's warm start on demonstrations with these observations; made once, then found in `folder`."""
    if (folder / "config.json").exists():
        return folder
    size = QUICK if quick else SIZES["full"]
    set_seed(seed)
    torch.set_num_threads(1)
    rows = write_demonstrations(
        folder.parent / f"{folder.name}-demonstrations.jsonl",
        tidy=size["tidy_steps"] * BATCH_SIZE,
        mixed=size["mixed_steps"] * BATCH_SIZE,
        seed=seed,
    )
    rows = [resized_row(row, observation) for row in rows]
    tokenizer = train_tokenizer(tokenizer_texts(rows))
    model = quickstart_model(tokenizer)
    decay_from = size["tidy_steps"] / (size["tidy_steps"] + size["mixed_steps"])
    warm_start(model, tokenizer, rows, tools=tools_of(observation, training_day(seed)), decay_from=decay_from)
    save(model, tokenizer, folder)
    return folder


def load_checkpoint(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
