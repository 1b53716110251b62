"""The whole chain on one small model, a few steps of each: does everything fit together, how long, how much memory?

    python -m recipes.smoke                   # 0.5 M parameters, a minute or two on two cores
    python -m recipes.smoke --preset lite     # 63.9 M parameters
    pretraining -> SFT -> DPO -> single-turn GRPO -> tool GRPO -> search GRPO

Data, tokenizer and weights are made on the spot. So few steps teach nothing: a table of seconds and memory is what ends
it, and every phase has checked that its loss is a number and that the weights moved.
"""

import argparse
import copy
import json
import math
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, Trainer, set_seed
from transformers.utils import get_json_schema
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from envmask_trl import BM25Retriever, EnvMaskGRPOConfig, EnvMaskGRPOTrainer, SearchTool, mask_observations

from .models import lite, tiny
from .resident_memory import peak_since_reset_mib, reset_peak
from .weather_calculator.demonstrations import tokenizer_texts, write_demonstrations
from .weather_calculator.optimizer import MuonWithAdamW
from .weather_calculator.tasks import CITIES, correct_answer, make_rows, make_tools, weather_report
from .weather_calculator.tokenizer import train_tokenizer
from .weather_calculator.warm_start import ADAMW_LEARNING_RATE, MUON_LEARNING_RATE

DAY = "monday"
CALLS = "tools/call_frequency"
PROSE = ("{city} lies by the water.", "The people of {city} eat late.", "In {city} it rains on {number} days.")


@dataclass(frozen=True, slots=True)
class Preset:
    """A model and how much of everything it is given.

    Example:
        Preset(tiny, steps=4, sft_steps=100, batch_size=8, generations=4, turn_tokens=24)
    """

    model: Callable[[], PreTrainedModel]
    steps: int
    sft_steps: int  # enough for calls of tools, where that is to be had in seconds
    batch_size: int  # rows of a step
    generations: int  # rollouts of a question
    turn_tokens: int
    threads: int | None = None  # of torch; None is all. Matrices as tiny as these lose more by waiting than they gain


PRESETS = {
    "tiny": Preset(tiny, steps=4, sft_steps=100, batch_size=8, generations=4, turn_tokens=24, threads=1),
    "lite": Preset(lite, steps=2, sft_steps=2, batch_size=4, generations=4, turn_tokens=16),
}


@dataclass(frozen=True, slots=True)
class Chain:
    """What the phases share: one model, whose weights go from phase to phase."""

    preset: Preset
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    demonstrations: list[dict]
    folder: Path

    def config(self, kind: type, **options: Any) -> Any:
        """The configuration of a phase: a few steps on the CPU or whatever is there, nothing saved."""
        return kind(
            output_dir=str(self.folder),
            per_device_train_batch_size=self.preset.batch_size,
            gradient_checkpointing=False,
            bf16=torch.cuda.is_available(),
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=torch.cuda.is_available(),
            **{"max_steps": self.preset.steps} | options,
        )

    def grpo_options(self) -> dict[str, Any]:
        tokens = self.preset.turn_tokens
        return {"num_generations": self.preset.generations, "max_completion_length": tokens, "temperature": 1.0}

    def tool_options(self) -> dict[str, Any]:
        """Room for a first turn, an observation, and an answer to it."""
        tokens = self.preset.turn_tokens
        own = {"max_turn_tokens": tokens, "max_tool_calling_iterations": 2, "max_completion_length": 12 * tokens}
        return self.grpo_options() | own | {"save_rollouts": False}

    def questions(self, calls: int) -> Dataset:
        return Dataset.from_list(make_rows({calls: self.preset.batch_size * self.preset.steps}, day=DAY, seed=0))


def pretraining(chain: Chain) -> Trainer:
    rng = random.Random(0)
    texts = [
        " ".join(rng.choice(PROSE).format(city=rng.choice(CITIES), number=rng.randint(10, 99)) for _ in range(6))
        for _ in range(chain.preset.batch_size * chain.preset.steps)
    ]
    config = chain.config(SFTConfig, max_length=128)
    return SFTTrainer(
        chain.model,
        args=config,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=chain.tokenizer,
    )


def sft(chain: Chain) -> Trainer:
    """Tool calls are learned, what the tools said is not."""
    schemas = [get_json_schema(tool) for tool in make_tools(DAY)]
    rows = Dataset.from_list([{"messages": row["messages"]} for row in chain.demonstrations])
    encoded = rows.map(
        mask_observations,
        batched=True,
        remove_columns=rows.column_names,
        fn_kwargs={"tokenizer": chain.tokenizer, "tools": schemas},
    )
    config = chain.config(SFTConfig, max_length=512, max_steps=chain.preset.sft_steps)
    return SFTTrainer(
        chain.model,
        args=config,
        train_dataset=encoded,
        processing_class=chain.tokenizer,
        optimizers=(MuonWithAdamW(chain.model, muon_lr=MUON_LEARNING_RATE, adamw_lr=ADAMW_LEARNING_RATE), None),
    )


def dpo(chain: Chain) -> Trainer:
    """The right answer rather than "no idea"."""
    rows = [
        {
            "prompt": row["prompt"],
            "chosen": [{"role": "assistant", "content": row["answer"]}],
            "rejected": [{"role": "assistant", "content": "no idea"}],
        }
        for row in make_rows({0: chain.preset.batch_size * chain.preset.steps}, day=DAY, seed=0)
    ]
    config = chain.config(DPOConfig, max_length=256)
    return DPOTrainer(
        chain.model,
        ref_model=copy.deepcopy(chain.model),  # made on the spot: there is no name to load it by once more
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=chain.tokenizer,
    )


def single_turn_grpo(chain: Chain) -> Trainer:
    config = chain.config(GRPOConfig, **chain.grpo_options())
    return GRPOTrainer(
        chain.model,
        [correct_answer, mean_id],  # type: ignore[list-item]  # TRL's type leaves no room for what is never None
        args=config,
        train_dataset=chain.questions(0),
        processing_class=chain.tokenizer,
    )


def tool_grpo(chain: Chain) -> Trainer:
    config = chain.config(EnvMaskGRPOConfig, **chain.tool_options())
    return EnvMaskGRPOTrainer(
        chain.model,
        [correct_answer, mean_id],
        args=config,
        train_dataset=chain.questions(1),
        processing_class=chain.tokenizer,
        tools=make_tools(DAY),
    )


def search_grpo(chain: Chain) -> Trainer:
    documents = [
        {"id": city, "title": city, "text": json.dumps(weather_report(city, DAY, irrelevant=2))} for city in CITIES
    ]
    retriever = BM25Retriever.build(documents, chain.folder / "index")
    config = chain.config(EnvMaskGRPOConfig, **chain.tool_options())
    return EnvMaskGRPOTrainer(
        chain.model,
        [correct_answer, mean_id],
        args=config,
        train_dataset=chain.questions(1),
        processing_class=chain.tokenizer,
        tools=[SearchTool(retriever, k=1, max_tokens=48, tokenizer=chain.tokenizer).search],
    )


def mean_id(completion_ids: list[list[int]], **_: object) -> list[float]:
    """The mean of the ids, in thousands: rewards that differ, whatever an untrained model writes."""
    return [sum(ids) / len(ids) / 1000 for ids in completion_ids]


PHASES = (pretraining, sft, dpo, single_turn_grpo, tool_grpo, search_grpo)


def main(preset: Preset) -> list[dict[str, Any]]:
    """Run the phases one after another; for each its name, seconds, peak memory in MiB, and calls per rollout."""
    set_seed(0)
    disable_progress_bars()
    torch.set_num_threads(preset.threads or torch.get_num_threads())
    table = []
    with tempfile.TemporaryDirectory() as folder:
        chain = make_chain(preset, Path(folder))
        for phase in PHASES:
            name = phase.__name__.replace("_", " ")
            print(f"{name} ...", flush=True)
            reset_peak()
            start_s = time.perf_counter()
            calls = run(phase(chain))
            seconds = time.perf_counter() - start_s
            table.append({"phase": name, "seconds": seconds, "mib": peak_since_reset_mib(), "calls": calls})
    return table


def make_chain(preset: Preset, folder: Path) -> Chain:
    rows = write_demonstrations(
        folder / "demonstrations.jsonl", tidy=preset.batch_size * preset.sft_steps, mixed=0, seed=0
    )
    tokenizer, model = train_tokenizer(tokenizer_texts(rows)), preset.model()
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return Chain(preset, model, tokenizer, rows, folder)


def run(trainer: Trainer) -> float | None:
    """Train; the calls per rollout where there are tools; raise if a loss is not a number, or if no weight moved."""
    trainer.remove_callback(PrinterCallback)
    model = trainer.model
    assert model is not None
    before = [weight.detach().clone() for weight in model.parameters()]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    name = type(trainer).__name__
    if not losses or not all(math.isfinite(loss) for loss in losses):
        raise RuntimeError(f"{name} logged the losses {losses}, expected one finite number for each step")
    if all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)):
        raise RuntimeError(f"{name} trained for {len(losses)} steps and no weight has moved")
    calls = [entry[CALLS] for entry in trainer.state.log_history if CALLS in entry]
    return sum(calls) / len(calls) if calls else None


def written(table: list[dict[str, Any]]) -> str:
    total = {"phase": "all", "seconds": sum(row["seconds"] for row in table), "mib": max(row["mib"] for row in table)}
    lines = []
    for row in [*table, total]:
        calls = "" if row.get("calls") is None else f"{row['calls']:>8.2f} calls per rollout"
        lines.append(f"{row['phase']:<18}{row['seconds']:>8.1f} s{row['mib']:>8.0f} MiB{calls}")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")  # TRL 1.16 uses the old name
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    print(written(main(PRESETS[parser.parse_args().preset])))
