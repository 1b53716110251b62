"""The whole way on a made-up encyclopedia, on a CPU: data, tokenizer, model, SFT, GRPO, scores. Knows the order."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from envmask_trl import BM25Retriever, RolloutLimits, SearchTool, TagProtocol, view

from ..models import quickstart_model
from ..weather_calculator.quickstart import save
from ..weather_calculator.report import peak_memory_gib
from ..weather_calculator.warm_start import BATCH_SIZE, NEIGHBOURHOOD, learn
from .clock import Clock
from .demonstrations import Demonstrator, Row, played_rows
from .evaluate import play
from .questions import Asker
from .reinforce import reinforce
from .report import numbers, write_report
from .tokenizer import tokenizer_texts, train_tokenizer
from .world import make_world

SIZES = {  # the world, steps of each part, and held-out questions of each number of hops
    "full": {"people": 3000, "firms": 1500, "towns": 500, "tidy": 880, "mixed": 100, "grpo": 50, "held_out": 64},
    "quick": {"people": 60, "firms": 40, "towns": 20, "tidy": 4, "mixed": 4, "grpo": 2, "held_out": 4},
}
QUESTIONS_PER_STEP = {1: 3, 2: 5}  # of GRPO, by hops
DOCUMENTS = 2  # of a search
DECAY_FROM = 0.65  # of SFT: bad habits, which come last, are learned slowly enough not to unlearn the rest
LIMITS = RolloutLimits(
    max_completion_length=256,  # two searches and an answer have about 150
    max_turn_tokens=12,  # the longest turn has 6
    max_tool_calling_iterations=3,
    max_malformed_calls=1,
)


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that is made before anything is learned."""

    tokenizer: PreTrainedTokenizerBase
    protocol: TagProtocol
    lesson: list[Row]  # demonstrations, in the order in which they are learned
    tasks: list[dict]  # questions of GRPO, in order
    held_out: list[dict]  # questions about subjects that neither of them asks about
    documents: int


def make_material(size: dict[str, int], *, output_dir: Path, seed: int) -> Material:
    world = make_world(people=size["people"], firms=size["firms"], towns=size["towns"], seed=seed)
    retriever = BM25Retriever.build(world.articles, output_dir / "index")
    lesson = Demonstrator(world, seed=seed).lesson(tidy=size["tidy"] * BATCH_SIZE, mixed=size["mixed"] * BATCH_SIZE)
    tokenizer = train_tokenizer(tokenizer_texts(world.articles, [prompt for prompt, _ in lesson]))
    protocol = TagProtocol(SearchTool(retriever, k=DOCUMENTS).search, tokenizer)
    training, rng = Asker(world, held_out=False), random.Random(f"training/{seed}")
    tasks = [question.row for _ in range(size["grpo"]) for question in training.mixed(QUESTIONS_PER_STEP, rng)]
    tests = Asker(world, held_out=True).mixed(dict.fromkeys((1, 2), size["held_out"]), random.Random(f"test/{seed}"))
    return Material(
        tokenizer=tokenizer,
        protocol=protocol,
        lesson=played_rows(lesson, tokenizer, protocol, LIMITS),
        tasks=tasks,
        held_out=[question.row for question in tests],
        documents=len(world.articles),
    )


def run_on_made_up_world(output_dir: Path, *, seed: int, quick: bool) -> dict:
    """Run all phases and write the report; returns its numbers."""
    size = SIZES["quick" if quick else "full"]
    set_seed(seed)
    torch.set_num_threads(1)  # the matrices are tiny: a second thread gains little, and waits whenever the core is busy
    clock, results = Clock(), {}
    with clock.timed("world, index, demonstrations"):
        made = make_material(size, output_dir=output_dir, seed=seed)
        model = quickstart_model(made.tokenizer)

    def evaluate(phase: str) -> list:
        played = {}
        with clock.timed(f"evaluation {phase}"):
            for decoding in ("sampled", "greedy"):
                greedy = decoding == "greedy"
                played[decoding] = play(
                    model, made.tokenizer, made.held_out, protocol=made.protocol, limits=LIMITS, greedy=greedy
                )
        results[phase] = {decoding: scores for decoding, (scores, _) in played.items()}
        print({decoding: round(scores["all"].em, 2) for decoding, scores in results[phase].items()}, flush=True)
        return played["sampled"][1]

    evaluate("before SFT")
    with clock.timed("SFT"):
        warm_start(model, made.lesson)
    save(model, made.tokenizer, output_dir / "sft")
    evaluate("after SFT")
    with clock.timed("GRPO"):
        _, rewards = reinforce(
            model,
            made.tokenizer,
            made.tasks,
            protocol=made.protocol,
            limits=LIMITS,
            questions_per_step=sum(QUESTIONS_PER_STEP.values()),
            output_dir=output_dir,
            seed=seed,
            use_cpu=True,
            bf16=False,
        )
    trajectories = evaluate("after GRPO")
    save(model, made.tokenizer, output_dir / "model")
    view(trajectories[:8], tokenizer=made.tokenizer).save(output_dir / "rollouts.html")
    facts = {"parameters": model.num_parameters(), "documents": made.documents, "seed": seed}
    report = numbers(results, seconds=clock.seconds, cpu_seconds=clock.cpu_seconds, peak_gib=peak_memory_gib(), **facts)
    write_report(report, rewards, output_dir=output_dir)
    return report


def warm_start(model: PreTrainedModel, lesson: list[Row]) -> None:
    together = NEIGHBOURHOOD * BATCH_SIZE
    neighbourhoods = [lesson[first : first + together] for first in range(0, len(lesson), together)]
    learn(model, neighbourhoods, steps=len(lesson) // BATCH_SIZE, decay_from=DECAY_FROM)
