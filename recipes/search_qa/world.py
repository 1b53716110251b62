"""A made-up world as an encyclopedia of about 5,000 short articles. Knows facts and prose: no questions, no model.

Doc 1(Title: Anna Korvin) Anna Korvin is a baker born in Tolham. Anna Korvin works for Marden Mills and collects stamps.
Doc 2(Title: Tolham) Tolham is a market town on the Gray River. The mayor is Petra Belsen.
Doc 3(Title: Marden Mills) Marden Mills makes paper and is based in Osthus. The company was founded by Emil Dorgan.

Names are put together from few syllables, so other articles look like the one that is meant.
"""

import random
from dataclasses import dataclass
from itertools import product

FIRST_NAMES = (
    *("Ada", "Agnes", "Alma", "Anna", "Bruno", "Carl", "Clara", "Dario", "Edgar", "Elsa", "Emil", "Erik", "Esra"),
    *("Frida", "Greta", "Hugo", "Ida", "Igor", "Ines", "Ivan", "Jonas", "Julia", "Karl", "Kira", "Lena", "Leo"),
    *("Lucia", "Marta", "Mila", "Nadia", "Nils", "Nora", "Olga", "Oscar", "Otto", "Paula", "Petra", "Rosa", "Sven"),
    "Vera",
)
HEADS = (  # three letters, then three more: a tokenizer can always cut such a name at the same place
    *("Bar", "Bel", "Bor", "Cal", "Cor", "Dal", "Dor", "Fal", "Fen", "Gar", "Gil", "Hal", "Hel", "Jor", "Kal", "Kel"),
    *("Kor", "Lan", "Lor", "Mal", "Mar", "Mel", "Nor", "Ost", "Pel", "Per", "Ral", "Rol", "Sal", "Sil", "Tal", "Tor"),
    *("Val", "Ver", "Wal", "Zel"),
)
NAME_TAILS = (
    *("ber", "cot", "den", "dor", "fen", "gan", "gor", "han", "ker", "las", "len", "lin", "man", "mer", "mon", "nar"),
    *("nel", "nis", "par", "ran", "rek", "ric", "rin", "ros", "sen", "ter", "tin", "vel", "vin", "zon"),
)
TOWN_TAILS = (
    *("bay", "bru", "dal", "gat", "ham", "hus", "kop", "lea", "low", "mur", "nes", "pol", "rod", "sta", "ton", "vik"),
    "wyk",
)
FIRM_KINDS = ("Foods", "Glass", "Lines", "Mills", "Paper", "Steel", "Tools", "Works")
JOBS = ("baker", "clerk", "cook", "doctor", "driver", "lawyer", "nurse", "painter", "sailor", "teacher", "welder")
HOBBIES = ("coins", "books", "clocks", "maps", "masks", "shells", "stamps", "stones")
GOODS = ("bread", "cheese", "chairs", "engines", "lamps", "ropes", "shoes", "soap", "wires")
TOWN_KINDS = ("fishing", "harbour", "market", "mining", "mountain", "railway")
RIVERS = ("Black", "Blue", "Gray", "Green", "Long", "Old", "Red", "White")


@dataclass(frozen=True, slots=True)
class World:
    """All facts; articles and questions are views of them.

    Example:
        World(facts={"Anna Korvin": {"born": "Tolham", "works": "Marden Mills"}, "Tolham": {"mayor": "Petra Belsen"},
                     "Marden Mills": {"based": "Osthus", "founder": "Emil Dorgan"}}, articles=[...])
    """

    facts: dict[str, dict[str, str]]  # subject -> relation -> object
    articles: list[dict[str, str]]  # rows with id, title, text


def make_world(*, people: int, firms: int, towns: int, seed: int) -> World:
    """The same world for the same numbers and seed."""
    rng = random.Random(f"world/{seed}")
    surnames = [head + tail for head, tail in product(HEADS[:11], NAME_TAILS)]
    firm_words = [head + tail for head, tail in product(HEADS[11:22], NAME_TAILS)]
    names = rng.sample([f"{first} {last}" for first, last in product(FIRST_NAMES, surnames)], people)
    town_names = rng.sample([head + tail for head, tail in product(HEADS[22:], TOWN_TAILS + NAME_TAILS)], towns)
    firm_names = rng.sample([f"{word} {kind}" for word, kind in product(firm_words, FIRM_KINDS)], firms)
    facts: dict[str, dict[str, str]] = {
        name: {"born": rng.choice(town_names), "works": rng.choice(firm_names)} for name in names
    }
    facts |= {firm: {"based": rng.choice(town_names), "founder": rng.choice(names)} for firm in firm_names}
    facts |= {town: {"mayor": rng.choice(names)} for town in town_names}
    subjects = rng.sample(sorted(facts), len(facts))
    articles = [
        {"id": str(number), "title": subject, "text": article(subject, facts[subject], rng)}
        for number, subject in enumerate(subjects)
    ]
    return World(facts, articles)


def article(subject: str, facts: dict[str, str], rng: random.Random) -> str:
    """Two sentences of prose with the facts of one subject, in one of several orders."""
    match facts:
        case {"born": town, "works": firm}:
            job, hobby = rng.choice(JOBS), rng.choice(HOBBIES)
            return rng.choice(
                (
                    f"{subject} is a {job} born in {town}. {subject} works for {firm} and collects {hobby}.",
                    f"{subject} is a {job} who works for {firm}. Born in {town}, {subject} collects {hobby}.",
                    f"Known for a collection of {hobby}, {subject} was born in {town} and works for {firm} as a {job}.",
                )
            )
        case {"based": town, "founder": founder}:
            goods = rng.choice(GOODS)
            return rng.choice(
                (
                    f"{subject} makes {goods} and is based in {town}. The company was founded by {founder}.",
                    f"{subject} was founded by {founder}. The company is based in {town} and makes {goods}.",
                )
            )
        case {"mayor": mayor}:
            kind, river = rng.choice(TOWN_KINDS), rng.choice(RIVERS)
            return rng.choice(
                (
                    f"{subject} is a {kind} town on the {river} River. The mayor is {mayor}.",
                    f"On the {river} River lies {subject}, a {kind} town. The mayor is {mayor}.",
                )
            )
    raise ValueError(f"no article for {subject!r} with the facts {sorted(facts)}")
