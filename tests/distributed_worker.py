"""One process of a training run: plays the scenarios below and writes down what it saw. Started by test_distributed.

python -m tests.distributed_worker FOLDER    writes FOLDER/<scenario>-<process>.json and FOLDER/<scenario>.pt
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch

from envmask_trl import ParsedTurn, ToolCall

from .scripted_training import ROWS, PlaysRows, Room, end_process, length, make_trainer
from .tiny import impatient_model, tiny_tokenizer

SCENARIOS = ("grpo", "dapo", "generate")


class Notes:
    """A reward function that writes down which row it was asked about and which row the rollout shows."""

    __name__ = "notes"

    def __init__(self) -> None:
        self.tokenizer = tiny_tokenizer()
        self.seen: list[dict[str, Any]] = []

    def __call__(
        self, prompts: list, row: list[int], trajectories: list, completion_texts: list, **columns: Any
    ) -> list[float]:
        for prompt, number, trajectory, text in zip(prompts, row, trajectories, completion_texts, strict=True):
            self.seen.append(
                {
                    "row": number,
                    "prompt": rows_in(prompt[0]["content"]),
                    "prompt_ids": rows_in(self.tokenizer.decode(list(trajectory.prompt_ids))),
                    "completion": rows_in(text),
                    "turns": trajectory.num_turns,
                }
            )
        return length(**columns)


def rows_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"row (\d)", text)]


def looks_often(text: str) -> ParsedTurn:
    """Reads noise as a call about every second time, so that processes need different numbers of rounds."""
    if sum(map(ord, text)) % 2:
        return ParsedTurn("answer", {"role": "assistant", "content": text})
    function = {"name": "look", "arguments": {}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    return ParsedTurn("calls", message, (ToolCall("", "look", {}),))


def play(scenario: str, folder: Path, *, processes: int) -> None:
    notes = Notes()
    options: dict[str, Any] = {"per_device_train_batch_size": ROWS // processes, "reward": notes}
    if scenario == "generate":
        options |= {"parser": looks_often, "model": impatient_model(tiny_tokenizer()), "max_turn_tokens": 6}
    else:
        options["loss_type"] = scenario
    trainer = make_trainer(folder / scenario, **options)
    if scenario != "generate":
        trainer.sampler = PlaysRows(trainer)
    trainer.train()
    rounds = trainer.sampler.rounds if isinstance(trainer.sampler, PlaysRows) else None
    process = trainer.accelerator.process_index
    (folder / f"{scenario}-{process}.json").write_text(
        json.dumps({"seen": notes.seen, "rounds": rounds, "rooms": [[room.opened, room.closed] for room in Room.made]})
    )
    if process == 0:
        torch.save({name: w.detach() for name, w in trainer.model.named_parameters()}, folder / f"{scenario}.pt")
    Room.made.clear()


def main(folder: Path) -> None:
    for scenario in SCENARIOS:
        play(scenario, folder, processes=int(os.environ.get("WORLD_SIZE", 1)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_process()
