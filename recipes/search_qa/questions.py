"""Questions of one and two hops whose answers stand only in the articles. Knows a world: no model, no tokens.

hops  question                                                  searches                        answer
1     Where was Anna Korvin born?                               Anna Korvin                     Tolham
1     Who is the mayor of Tolham?                               Tolham                          Petra Belsen
2     Who is the mayor of the town where Anna Korvin was born?  Anna Korvin, then Tolham        Petra Belsen
"""

import random
import zlib
from dataclasses import dataclass

from .world import World

ONE_HOP = {
    "born": "Where was {} born?",
    "works": "Which company does {} work for?",
    "based": "Where is {} based?",
    "founder": "Who founded {}?",
    "mayor": "Who is the mayor of {}?",
}
TWO_HOPS = {
    ("born", "mayor"): "Who is the mayor of the town where {} was born?",
    ("works", "based"): "Where is the company that {} works for based?",
    ("works", "founder"): "Who founded the company that {} works for?",
    ("based", "mayor"): "Who is the mayor of the town where {} is based?",
}
HELD_OUT = 0.2  # of the subjects: no demonstration and no training question is about them


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answer, and the articles that lead there, in order.

    Example:
        Question("Where was Anna Korvin born?", "Tolham", path=("Anna Korvin",))
    """

    text: str
    answer: str
    path: tuple[str, ...]

    @property
    def hops(self) -> int:
        return len(self.path)

    @property
    def row(self) -> dict:
        """A dataset row; the prompt is plain text, as for a base model."""
        return {"prompt": prompt_of(self.text), "answer": self.answer, "path": list(self.path), "hops": self.hops}


def prompt_of(question: str) -> str:
    return f"Question: {question}\n"


class Asker:
    """Asks about the subjects of a world, either those of training or those that are held out.

    Example:
        Asker(world, held_out=False).ask(2, random.Random(0))
    """

    def __init__(self, world: World, *, held_out: bool):
        self.facts = world.facts
        subjects = [name for name in world.facts if is_held_out(name) == held_out]
        self.subjects = {
            relation: [name for name in subjects if relation in world.facts[name]]
            for relation in ("born", "works", "based", "founder", "mayor")
        }

    def ask(self, hops: int, rng: random.Random) -> Question:
        """A random question of one or two hops."""
        if hops == 1:
            relation = rng.choice(list(ONE_HOP))
            subject = rng.choice(self.subjects[relation])
            return Question(ONE_HOP[relation].format(subject), self.facts[subject][relation], (subject,))
        first, second = rng.choice(list(TWO_HOPS))
        subject = rng.choice(self.subjects[first])
        bridge = self.facts[subject][first]
        text = TWO_HOPS[first, second].format(subject)
        return Question(text, self.facts[bridge][second], (subject, bridge))

    def mixed(self, counts: dict[int, int], rng: random.Random) -> list[Question]:
        """`counts[hops]` questions of each sort, shuffled."""
        questions = [self.ask(hops, rng) for hops, count in counts.items() for _ in range(count)]
        rng.shuffle(questions)
        return questions


def is_held_out(subject: str) -> bool:
    """Decided by the name alone, so that no run can mix them up."""
    return zlib.crc32(subject.encode()) % 100 < 100 * HELD_OUT
