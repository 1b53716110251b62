"""A real instruct model on a CPU: SFT with the observation mask, then GRPO, both with LoRA; success before and after.

    python -m recipes.experiments.instruct_model --model HuggingFaceTB/SmolLM2-135M-Instruct --output-dir runs/instruct
    python -m recipes.experiments.instruct_model --output-dir runs/instruct --report recipes/experiments/README.md
    envmask-trl view runs/instruct/grpo/rollouts --model runs/instruct/sft

Any ChatML model, by its folder or id. Each phase is kept in the output folder as soon as it is done, and GRPO every few
steps; the same command goes on where a run was stopped. Afterwards there are results.json, grpo.png, held_out.html and
the rollouts of each step.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, ProgressLine, mask_dataset, view

from ..benchmarks.timing import machine
from ..weather_calculator.reinforce import CALLS_WEIGHT, METRIC, SCALE_REWARDS
from ..weather_calculator.tasks import correct_answer, make_rows, needed_calls
from .instruct_report import write_report
from .instruct_task import LIMITS, held_out, load_model, play_short, short_demonstrations, short_tools

SIZES = {
    "full": {"demonstrations": 640, "steps": 32, "held_out": 12, "save_steps": 2},
    "quick": {"demonstrations": 8, "steps": 2, "held_out": 1, "save_steps": 1},
}
QUESTIONS = {1: 1, 2: 2, 3: 1}  # of a GRPO step, by calls; those of three are never demonstrated
NUM_GENERATIONS = 4
SFT_BATCH_SIZE = 8
SFT_LEARNING_RATE = 1e-3
GRPO_LEARNING_RATE = 2e-4
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PHASES = ("before SFT", "after SFT", "after GRPO")
SHOWN = 16  # held-out rollouts in held_out.html
SHARED: dict[str, Any] = {  # options of both trainers
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "num_train_epochs": 1,
    "save_total_limit": 2,
    "logging_steps": 1,
    "report_to": "none",
    "disable_tqdm": True,
}


class Kept:
    """What is known of a run, in a file that is written anew with each phase.

    Example:
        kept.data -> {"settings": {...}, "held_out": {"after SFT": {"sampled": {"1": [7, 12], ...}}},
                      "training": {"SFT": {"loss": [...]}}, "seconds": {"after SFT": 80.2, "SFT": 290.0}, "on": {...}}
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.data: dict[str, Any] = {
            "settings": settings,
            "on": machine(),
            "held_out": {},
            "training": {},
            "seconds": {},
        }
        if path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))
            if self.data["settings"] != settings:
                raise ValueError(
                    f"{path} is of a run with {self.data['settings']}, expected {settings}; "
                    "give this run another --output-dir"
                )
        path.parent.mkdir(parents=True, exist_ok=True)

    def once(self, section: str, name: str, work: Callable[[], Any]) -> None:
        """Do the work and keep what it returns, unless that has been done."""
        if name in self.data[section]:
            return
        print(f"{name} ...", flush=True)
        start = time.perf_counter()
        self.data[section][name] = work()
        self.data["seconds"][name] = round(time.perf_counter() - start, 1)
        self.path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run what has not been done yet, write the report, and return all numbers."""
    options = parse(arguments)
    size = SIZES["quick" if options.quick else "full"] | ({"steps": options.steps} if options.steps else {})
    folder: Path = options.output_dir
    kept = Kept(folder / "results.json", {"model": options.model, "seed": options.seed, **size})
    torch.set_num_threads(1)
    rows = held_out(options.seed, each=size["held_out"])

    def evaluate(phase: str, load: Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]]) -> None:
        kept.once("held_out", phase, lambda: evaluated(*load(), rows, seed=options.seed, page=folder / "held_out.html"))

    evaluate(PHASES[0], lambda: load_model(options.model))
    kept.once("training", "SFT", lambda: warm_up(options.model, folder, size=size, seed=options.seed))
    evaluate(PHASES[1], lambda: load_model(str(folder / "sft")))
    kept.once("training", "GRPO", lambda: reinforce(folder, size=size, seed=options.seed))
    evaluate(PHASES[2], lambda: load_model(str(folder / "model")))
    write_report(kept.data, output=folder, report=options.report)
    return kept.data


def evaluated(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict], *, seed: int, page: Path
) -> dict[str, dict[str, list[int]]]:
    """{"sampled": {"1": [7, 12], ...}, "greedy": ...}: right answers and questions, by the calls that they need."""
    counts: dict[str, dict[str, list[int]]] = {}
    for decoding in ("greedy", "sampled"):
        set_seed(seed)
        played, trajectories = play_short(model, tokenizer, rows, seed=seed, greedy=decoding == "greedy")
        by_calls: dict[str, list[int]] = {}
        for rollout in played:
            found = by_calls.setdefault(str(rollout.calls_needed), [0, 0])
            found[0] += rollout.outcome == "right"
            found[1] += 1
        counts[decoding] = dict(sorted(by_calls.items()))
    view(trajectories[:SHOWN], tokenizer=tokenizer).save(page)  # those that were sampled, of the latest phase
    return counts


def warm_up(model_path: str, folder: Path, *, size: dict[str, int], seed: int) -> dict[str, list[float]]:
    """SFT on the demonstrations, where only the model's own tokens have labels; writes folder/sft; the losses."""
    model, tokenizer = load_model(model_path)
    rows = short_demonstrations(folder / "demonstrations.jsonl", count=size["demonstrations"], seed=seed)
    masked, report = mask_dataset(Dataset.from_list(rows), tokenizer, tools=short_tools("sft"))
    print(report, flush=True)
    config = SFTConfig(
        output_dir=str(folder / "sft-trainer"),
        per_device_train_batch_size=SFT_BATCH_SIZE,
        learning_rate=SFT_LEARNING_RATE,
        max_length=None,
        save_steps=max(1, size["demonstrations"] // SFT_BATCH_SIZE // 4),
        seed=seed,
        **SHARED,
    )
    trainer = SFTTrainer(model, config, train_dataset=masked, processing_class=tokenizer, peft_config=lora(model))
    ProgressLine("SFT", {"loss": "loss"}).instead_of_the_log(trainer)
    trainer.train(resume_from_checkpoint=last_checkpoint(folder / "sft-trainer"))
    save_merged(trainer.model, tokenizer, folder / "sft")
    return {"loss": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]}


def reinforce(folder: Path, *, size: dict[str, int], seed: int) -> dict[str, list[float]]:
    """GRPO from folder/sft, from its last checkpoint where it was stopped; writes folder/model; the curves."""
    model, tokenizer = load_model(str(folder / "sft"))
    day = f"training {seed}"
    tasks = [row for step in range(size["steps"]) for row in make_rows(QUESTIONS, day=day, seed=f"{seed}/{step}")]
    config = EnvMaskGRPOConfig(
        output_dir=str(folder / "grpo"),
        per_device_train_batch_size=NUM_GENERATIONS * sum(QUESTIONS.values()),
        num_generations=NUM_GENERATIONS,
        shuffle_dataset=False,
        learning_rate=GRPO_LEARNING_RATE,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        reward_weights=[1.0, CALLS_WEIGHT],
        scale_rewards=SCALE_REWARDS,
        beta=0.0,
        save_steps=size["save_steps"],
        seed=seed,
        **LIMITS,
        **SHARED,
    )
    trainer = EnvMaskGRPOTrainer(
        model,
        [correct_answer, needed_calls],
        args=config,
        train_dataset=Dataset.from_list(tasks),
        processing_class=tokenizer,
        tools=short_tools(day),
        peft_config=lora(model),
    )
    ProgressLine("GRPO", {"right answers": METRIC}).instead_of_the_log(trainer)
    trainer.train(resume_from_checkpoint=last_checkpoint(folder / "grpo"))
    save_merged(trainer.model, tokenizer, folder / "model")
    logs = [entry for entry in trainer.state.log_history if METRIC in entry]
    names = {"right_answers": METRIC, "reward": "reward", "grad_norm": "grad_norm"}
    return {name: [entry[key] for entry in logs] for name, key in names.items()}


def lora(model: PreTrainedModel) -> LoraConfig:
    """Of the last half of the layers: backward ends there, which saves a third of its time."""
    depth = model.config.num_hidden_layers
    layers = list(range(depth // 2, depth))
    return LoraConfig(
        r=16, lora_alpha=32, target_modules=PROJECTIONS, layers_to_transform=layers, task_type="CAUSAL_LM"
    )


def last_checkpoint(folder: Path) -> str | None:
    return get_last_checkpoint(str(folder)) if folder.exists() else None


def save_merged(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the model with its adapter merged in, the tokenizer first: a config says that all is there."""
    tokenizer.save_pretrained(folder)
    model.merge_and_unload().save_pretrained(folder)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="folder or id of a ChatML model")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/instruct"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help=f"of GRPO; {SIZES['full']['steps']}")
    parser.add_argument("--report", type=Path, help="a Markdown file whose generated section is written anew")
    parser.add_argument("--quick", action="store_true", help="the same path in two steps, for tests; learns nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")  # TRL 1.16's name
    main()
