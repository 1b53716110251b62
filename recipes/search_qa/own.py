"""The same GRPO and scores on a user's model, documents and questions. Knows files and options: no made-up world."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from envmask_trl import BM25Retriever, HTTPRetriever, RolloutLimits, SearchTool, TagProtocol, view

from ..weather_calculator.report import peak_memory_gib
from .clock import Clock
from .evaluate import play
from .reinforce import reinforce
from .report import numbers, write_report

INSTRUCTION = (
    "Answer the question. Whenever you lack knowledge, search with <search> query </search>; what is found comes "
    "between <information> and </information>. Give the final answer, as short as it can be, as "
    "<answer> answer </answer>.\n\n"
)


def run_on_own_data(options: Namespace) -> dict:
    """GRPO from `options.model` on `options.questions`, scored on the last of them before and after.

    Wrong data, or a file, a model or a server's address that is none, end the program before anything is played, with
    one sentence and exit status 2.
    """
    set_seed(options.seed)
    try:
        model, tokenizer, protocol, training, held_out = prepared(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"search_qa: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    limits = RolloutLimits(
        max_completion_length=options.max_completion_length,
        max_turn_tokens=options.max_turn_tokens,
        max_tool_calling_iterations=options.max_searches,
    )
    clock, results = Clock(), {}

    def evaluate(phase: str) -> list:
        with clock.timed(f"evaluation {phase}"):
            scores, played = play(model, tokenizer, held_out, protocol=protocol, limits=limits, greedy=True)
        results[phase] = {"greedy": scores}
        return played

    evaluate("before GRPO")
    with clock.timed("GRPO"):
        model, rewards = reinforce(
            model,
            tokenizer,
            training,
            protocol=protocol,
            limits=limits,
            questions_per_step=options.questions_per_step,
            output_dir=options.output_dir,
            seed=options.seed,
            peft_config=LoraConfig(r=options.lora_rank, target_modules="all-linear") if options.lora_rank else None,
            learning_rate=options.learning_rate,
            use_cpu=not torch.cuda.is_available(),
            bf16=options.dtype == "bfloat16",
        )
    view(evaluate("after GRPO")[:8], tokenizer=tokenizer).save(options.output_dir / "rollouts.html")
    model.save_pretrained(options.output_dir / "model")
    tokenizer.save_pretrained(options.output_dir / "model")
    facts = {"parameters": model.num_parameters(), "seed": options.seed}
    report = numbers(results, seconds=clock.seconds, cpu_seconds=clock.cpu_seconds, peak_gib=peak_memory_gib(), **facts)
    write_report(report, rewards, output_dir=options.output_dir)
    return report


def prepared(options: Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, TagProtocol, list, list]:
    """Model, tokenizer, protocol, and the questions of training and of scoring; what costs least is read first.

    Raises:
        ValueError: a question's or a document's row is none, or there are too few rows; with file and line.
        OSError: there is no such file or model.
    """
    questions = read_questions(options.questions)
    split(questions, options.held_out, options.questions_per_step)
    retriever = (
        HTTPRetriever(options.url) if options.url else BM25Retriever.build(options.corpus, options.output_dir / "index")
    )
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = [with_prompt(row, tokenizer) for row in questions]
    search = SearchTool(retriever, k=options.documents, max_tokens=options.document_tokens, tokenizer=tokenizer).search
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device)  # type: ignore[arg-type]  # to mypy, transformers' wrapper of it is unbound
    training, held_out = split(rows, options.held_out, options.questions_per_step)
    return model, tokenizer, TagProtocol(search, tokenizer), training, held_out


def read_questions(path: Path) -> list[dict]:
    """The rows of a JSONL file with `question` and `answer` (a text, or a list of alternatives).

    Raises:
        ValueError: a line is something else, with file and line.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}); expected one object a line") from error
        if not isinstance(row, dict) or not is_text(row.get("question")) or not is_answer(row.get("answer")):
            found = sorted(row) if isinstance(row, dict) else type(row).__name__
            raise ValueError(
                f"{path}, line {number}: found {found}, expected `question`, a text, and `answer`, a text, "
                "a number or a list of them"
            )
        rows.append(row)
    return rows


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_answer(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(is_answer(each) and not isinstance(each, list) for each in value)
    return is_text(value) or (isinstance(value, int | float) and not isinstance(value, bool))


def with_prompt(row: dict, tokenizer: PreTrainedTokenizerBase) -> dict:
    """The row with its prompt: one message for a chat model, text for a base model."""
    text = f"{INSTRUCTION}Question: {row['question']}\n"
    prompt = [{"role": "user", "content": text}] if tokenizer.chat_template else text
    return {"prompt": prompt, "answer": row["answer"], "path": row.get("path"), "hops": row.get("hops")}


def split(rows: list[dict], held_out: int, questions_per_step: int) -> tuple[list[dict], list[dict]]:
    """Training rows, a whole number of steps, and the last `held_out` rows."""
    training = rows[: len(rows) - held_out]
    training = training[: len(training) // questions_per_step * questions_per_step]
    if not training or held_out < 1:
        raise ValueError(
            f"{len(rows)} questions, {held_out} of them held out, leave {len(training)} for steps of "
            f"{questions_per_step}; give more questions, or lower --held-out or --questions-per-step"
        )
    return training, rows[len(rows) - held_out :]
