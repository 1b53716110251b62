"""The quickstart's training step: its model, tokenizer, questions, tools and sizes. Knows its tasks: no trainer.

Most members of a group call what is needed and conclude; the last two guess at once, as an untrained policy does.
"""

import tempfile
from pathlib import Path
from typing import Any

from ..weather_calculator.demonstrations import tokenizer_texts, write_demonstrations
from ..weather_calculator.evaluate import MAX_CALLS
from ..weather_calculator.tasks import make_rows, make_tools
from ..weather_calculator.tokenizer import train_tokenizer
from .policy import Turns
from .workloads import TAGS, Workload, call, make_script

DAY = "benchmark"
QUESTIONS = {0: 1, 1: 2, 2: 2, 3: 3}  # of a step, by calls
GUESSING = 2  # members of a group
TEXTS = 600  # demonstrations that the tokenizer learns from


def make_quickstart_workload(questions: dict[int, int] = QUESTIONS, *, seed: int = 0) -> Workload:
    """One generation batch; `questions` counts them by the calls that they need."""
    with tempfile.TemporaryDirectory() as folder:
        texts = tokenizer_texts(write_demonstrations(Path(folder, "d.jsonl"), tidy=TEXTS, mixed=0, seed=seed))
    tokenizer = train_tokenizer(texts)
    rows: list[dict[str, Any]] = [dict(row) for row in make_rows(questions, day=DAY, seed=seed)]

    def turns(row: dict, tag: str, calls: list[str]) -> Turns:
        written = [call(*needed.split(" ", 1)) for needed in calls] + [f"{row['answer']}<|im_end|>"]
        return [tokenizer(text)["input_ids"] for text in (tag + written[0], *written[1:])]

    members = [
        [turns(row, tag, [] if place >= len(TAGS) - GUESSING else row["needed"]) for place, tag in enumerate(TAGS)]
        for row in rows
    ]
    tools = make_tools(DAY)
    prompts = [row["prompt"] for row in rows]
    script = make_script(tokenizer, prompts, tools, members)
    return Workload("quickstart", tokenizer, tools, prompts, script, MAX_CALLS, micro_batch=len(TAGS) * len(rows))
