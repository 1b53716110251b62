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
from transformers import PreTrainedTokenizerBase

from envmask_trl import ParsedTurn, ToolCall

from .scripted_training import ROWS, PlaysRows, Room, length, make_trainer
from .tiny import tiny_tokenizer

SCENARIOS = ("grpo", "dapo", "generate")
END_OF_TURN = tiny_tokenizer().eos_token_id  # forced as the last token of a turn


class Notes:
    """A reward function that writes down which row it was asked about and which row the rollout shows."""

    __name__ = "notes"

    def __init__(self, tokenizer_of: Any):
        self.tokenizer_of = tokenizer_of
        self.seen: list[dict[str, Any]] = []

    def __call__(self, prompts: list, row: list[int], trajectories: list, completion_texts: list, **columns: Any) -> list:
        tokenizer: PreTrainedTokenizerBase = self.tokenizer_of()
        for prompt, number, trajectory, text in zip(prompts, row, trajectories, completion_texts, strict=True):
            self.seen.append(
                {
                    "row": number,
                    "prompt": rows_in(prompt[0]["content"]),
                    "prompt_ids": rows_in(tokenizer.decode(list(trajectory.prompt_ids))),
                    "completion": rows_in(text),
                    "turns": trajectory.num_turns,
                }
            )
        return length(**columns)


def rows_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"row (\d)", text)]


def looks_often(text: str) -> ParsedTurn:
    """Reads noise as a call about every second time, so that processes need different numbers of rounds."""
    message = {"role": "assistant", "content": text}
    if sum(map(ord, text)) % 2:
        return ParsedTurn("answer", message)
    return ParsedTurn("calls", message, (ToolCall("", "look", {}),))


def play(scenario: str, folder: Path, *, processes: int) -> None:
    notes = Notes(lambda: trainer.processing_class)
    options: dict[str, Any] = {"per_device_train_batch_size": ROWS // processes, "reward": notes}
    if scenario == "generate":
        options |= {
            "parser": looks_often,
            "max_turn_tokens": 6,
            "max_tool_calling_iterations": 5,
            "generation_kwargs": {"forced_eos_token_id": END_OF_TURN},
        }
    else:
        options["loss_type"] = scenario
    trainer = make_trainer(folder / "out", **options)
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
