"""With and without the observation mask: how often does the model write an observation itself instead of calling?

    python -m recipes.agent_sft --output-dir runs/agent_sft --seed 0

One small model is trained twice from the same weights, on the same rows in the same order; only the labels differ.
Then both answer held-out questions that need a tool, in two ways:

    free    nothing stops the model at its call. What does it write behind `</action>`?
    loop    the turn loop stops it at `</action>`, runs the tool and shows the result. Is the answer right?

Expect (seed 0): free, 0 of 128 write an observation with the mask and 128 of 128 without; in the loop nobody does, and
1.00 against 0.37 of the answers are right. Four minutes for each model on a core that is shared with others.
"""

import argparse
import json
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, SFTTrainer

from envmask_trl import KeptCacheSampler, RolloutLimits, mask_dataset, register_special_tokens, run_rollouts

from ..models import quickstart_model
from ..weather_calculator.demonstrations import tokenizer_texts, write_demonstrations
from ..weather_calculator.optimizer import MuonWithAdamW
from ..weather_calculator.tasks import is_answer, make_rows, make_tools
from ..weather_calculator.tokenizer import train_tokenizer
from .tagged import CHAT_TEMPLATE, FORMAT, TAGS, read_turn, tagged

SIZES = {"full": {"steps": 500, "held_out": 64}, "quick": {"steps": 4, "held_out": 2}}
BATCH_SIZE = 8
FREE_TOKENS = 96  # a call, a weather report and an answer have about 75
BEHIND = {"<observation>": "observation", "<action>": "another call"}  # what a model writes behind its call


def main(arguments: argparse.Namespace) -> dict:
    """Train both, measure both, write `report.json`, print the table; returns the numbers."""
    started = time.perf_counter()
    size = SIZES["quick" if arguments.quick else "full"]
    torch.set_num_threads(1)
    output_dir = Path(arguments.output_dir)
    rows = write_demonstrations(
        output_dir / "demonstrations.jsonl", tidy=size["steps"] * BATCH_SIZE, mixed=0, seed=arguments.seed
    )
    tokenizer = train_tokenizer(tokenizer_texts(rows))
    register_special_tokens(tokenizer, None, TAGS)
    tokenizer.chat_template = CHAT_TEMPLATE
    masked, report = mask_dataset(Dataset.from_list([tagged(row) for row in rows]), tokenizer, tags=FORMAT)
    print(report, flush=True)
    day = f"test {arguments.seed}"
    questions = make_rows({1: size["held_out"], 2: size["held_out"]}, day=day, seed=arguments.seed)
    results = {}
    for name, data in {"with the mask": masked, "without": masked.map(all_learned)}.items():
        set_seed(arguments.seed)
        model = quickstart_model(tokenizer)
        seconds = train(model, tokenizer, data, output_dir=output_dir, seed=arguments.seed)
        results[name] = {
            "train_seconds": round(seconds, 1),
            "learned_tokens": sum(label != -100 for labels in data["labels"] for label in labels),
            **free(model, tokenizer, questions),
            **loop(model, tokenizer, questions, day=day),
        }
    numbers = {"questions": len(questions), "rows": report.kept, "seed": arguments.seed, "results": results}
    numbers["seconds"] = round(time.perf_counter() - started, 1)
    (output_dir / "report.json").write_text(json.dumps(numbers, indent=2), encoding="utf-8")
    print(table(results))
    return numbers


def all_learned(row: dict) -> dict:
    """The same row as it is trained without the mask: observations are learned like everything behind the prompt."""
    first = next(place for place, label in enumerate(row["labels"]) if label != -100)
    return {"labels": [-100] * first + row["input_ids"][first:]}


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Dataset, *, output_dir: Path, seed: int
) -> float:
    """Once through the rows in their order, with `trl.SFTTrainer`; returns the seconds it took."""
    steps = len(rows) // BATCH_SIZE
    optimizer = MuonWithAdamW(model, muon_lr=0.005, adamw_lr=5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, min(1.0, 2 * (1 - step / steps))))
    config = SFTConfig(
        output_dir=str(output_dir / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=BATCH_SIZE,
        train_sampling_strategy="sequential",
        seed=seed,
        max_length=None,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        logging_steps=max(1, steps // 5),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model, config, train_dataset=rows, processing_class=tokenizer, optimizers=(optimizer, schedule)
    )
    return trainer.train().metrics["train_runtime"]


def free(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: list[dict]) -> dict[str, float]:
    """Nobody stops the model at its call: the share of questions behind whose first call it writes what."""
    model.eval()
    played = run_rollouts(
        [row["prompt"] for row in questions],
        tokenizer=tokenizer,
        sampler=KeptCacheSampler(model, tokenizer, do_sample=False),
        limits=RolloutLimits(max_completion_length=FREE_TOKENS),
    )
    counts = Counter(behind_first_call(str(tokenizer.decode(list(rollout.completion_ids)))) for rollout in played)
    kinds = ("observation", "another call", "an answer", "nothing", "no call")
    return {f"free: {kind}": counts[kind] / len(played) for kind in kinds}


def behind_first_call(text: str) -> str:
    """What a text goes on with behind its first call."""
    call, closing, rest = text.partition("</action>")
    if not closing:
        return "observation" if "<observation>" in call else "no call"
    found = next((kind for tag, kind in BEHIND.items() if rest.startswith(tag)), None)
    return found or ("nothing" if rest.startswith("<|im_end|>") or not rest.strip() else "an answer")


def loop(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: list[dict], *, day: str
) -> dict[str, float]:
    """The turn loop, which ends a turn at `</action>`: right answers, and observations that the model wrote itself."""
    stops = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("</action>")}
    played = run_rollouts(
        [row["prompt"] for row in questions],
        tokenizer=tokenizer,
        sampler=KeptCacheSampler(model, tokenizer, do_sample=False, stop_token_ids=stops),
        tools=make_tools(day),
        parser=partial(read_turn, tokenizer),
        stop_token_ids=stops,
        limits=RolloutLimits(max_completion_length=320, max_turn_tokens=FREE_TOKENS, max_tool_calling_iterations=4),
    )
    own = tokenizer.convert_tokens_to_ids("<observation>")
    wrote = [own in {t for t, mine in zip(r.completion_ids, r.env_mask, strict=True) if mine} for r in played]
    right = [is_answer(list(r.messages), row["answer"]) for r, row in zip(played, questions, strict=True)]
    called = [bool(rollout.tool_results) for rollout in played]
    shares = {"own observation": wrote, "called": called, "right": right}
    return {f"loop: {name}": sum(values) / len(values) for name, values in shares.items()}


def table(results: dict[str, dict[str, float]]) -> str:
    """One line for each number, one column for each training."""
    names = list(next(iter(results.values())))
    lines = [f"{'':24}" + "".join(f"{column:>16}" for column in results)]
    for name in names:
        values = [results[column][name] for column in results]
        lines.append(f"{name:24}" + "".join(f"{v:>16.3f}" if ":" in name else f"{v:>16,}" for v in values))
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output-dir", default="runs/agent_sft", help="folder of the report")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few steps, to see whether everything runs")
    return parser.parse_args(arguments)
