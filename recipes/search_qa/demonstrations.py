"""Demonstrations of mixed quality, played through the same loop as every rollout. Knows questions: no optimiser.

    tidy     searches for each article of the path, answers with what the last one says
    echo     answers at once, with the name in the question
    hasty    answers after one search of two; on one hop, with the other fact of the article
    vague    searches for a part of the name, and answers with the name

A bad habit always goes wrong in the same way: demonstrations of random names would unlearn how to copy one.
A scripted policy writes the turns, the real retriever answers, and the row has the mask that every rollout has.
"""

import random
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from envmask_trl import RolloutLimits, ScriptedSampler, TagProtocol, Trajectory, run_rollouts

from ..weather_calculator.warm_start import IGNORED
from .questions import Asker, Question, prompt_of
from .world import World

MIX = {"tidy": 0.25, "echo": 0.25, "hasty": 0.25, "vague": 0.25}  # of the mixed part
VAGUE = 3  # letters of a town that is not written out
AT_ONCE = 256  # demonstrations that are played together

Row = tuple[list[int], list[int]]  # ids and labels
Demonstration = tuple[str, list[str]]  # a prompt, and the turns that follow


class Demonstrator:
    """Writes demonstrations about the subjects of training.

    Example:
        Demonstrator(world, seed=0).write(progress=1.0, quality="tidy")
        ("Question: Where was Anna Korvin born?\\n", ["<search> Anna Korvin</search>", "<answer> Tolham</answer>"])
    """

    def __init__(self, world: World, *, seed: int):
        self.facts = world.facts
        self.asker = Asker(world, held_out=False)
        self.rng = random.Random(f"demonstrations/{seed}")

    def lesson(self, *, tidy: int, mixed: int) -> list[Demonstration]:
        """`tidy` good demonstrations, questions of two hops coming in slowly, then `mixed` of mixed quality."""
        rows = [self.write(quality="tidy", progress=row / tidy) for row in range(tidy)]
        return rows + [self.write(quality=self.rng.choices(list(MIX), list(MIX.values()))[0]) for _ in range(mixed)]

    def write(self, *, quality: str, progress: float = 1.0) -> Demonstration:
        question = self.asker.ask(2 if self.rng.random() < 0.5 * min(1.0, 2 * progress) else 1, self.rng)
        return prompt_of(question.text), self.turns(question, quality)

    def turns(self, question: Question, quality: str) -> list[str]:
        subject = question.path[0]
        searched, answer = list(question.path), question.answer
        match quality:
            case "echo":
                searched, answer = [], subject
            case "hasty":
                others = [name for name in self.facts[subject].values() if name != answer]
                searched, answer = [subject], question.path[1] if question.hops == 2 else (others or [subject])[0]
            case "vague":
                searched, answer = [subject.split()[0] if " " in subject else subject[:VAGUE]], subject
        return [*(f"<search> {name}</search>" for name in searched), f"<answer> {answer}</answer>"]


def played_rows(
    demonstrations: Sequence[Demonstration],
    tokenizer: PreTrainedTokenizerBase,
    protocol: TagProtocol,
    limits: RolloutLimits,
) -> list[Row]:
    """The rows of demonstrations, their observations retrieved and masked by the loop that the model will meet."""
    rows: list[Row] = []
    for first in range(0, len(demonstrations), AT_ONCE):
        together = demonstrations[first : first + AT_ONCE]
        scripts = [
            [tuple(tokenizer(turn, add_special_tokens=False)["input_ids"]) for turn in turns] for _, turns in together
        ]
        rollouts = run_rollouts(
            [prompt for prompt, _ in together],
            tokenizer=tokenizer,
            sampler=ScriptedSampler(scripts, logprobs=False),
            protocol=protocol,
            limits=limits,
        )
        rows += [labelled(rollout) for rollout in rollouts]
    return rows


def labelled(rollout: Trajectory) -> Row:
    """Ids, and the same ids under the mask's ones: `([1, 10, 20, 11], [-100, 10, -100, 11])`."""
    written = [token if own else IGNORED for token, own in zip(rollout.completion_ids, rollout.env_mask, strict=True)]
    return [*rollout.prompt_ids, *rollout.completion_ids], [IGNORED] * len(rollout.prompt_ids) + written
