"""The world: two tools, questions that need none to three calls of them, and the reward. Knows no model and no tokens.

calls  question                                      what has to be done
0      Oslo has 27. How warm is Oslo?                read the question
1      How warm is Oslo?                             weather
1      How much warmer is 27 than 13, doubled?       calculator
2      How warm are Oslo and Lima?                   weather, weather
2      How much warmer is Oslo than 13?              weather, calculator
3      How much warmer is Oslo than Lima, doubled?   weather, weather, calculator
"""

import ast
import json
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import eq

CITIES = (
    *("Accra", "Athens", "Berlin", "Bern", "Bogota", "Boston", "Cairo", "Dakar", "Delhi"),
    *("Dublin", "Hanoi", "Havana", "Kyiv", "Kyoto", "Lagos", "Lima", "Lisbon", "London"),
    *("Madrid", "Manila", "Milan", "Moscow", "Mumbai", "Nairobi", "Oslo", "Paris", "Prague"),
    *("Quito", "Riga", "Rome", "Seoul", "Sofia", "Sydney", "Tokyo", "Tunis", "Vienna"),
)
FIELDS = ("humidity", "wind", "pressure", "rain", "cloud", "visibility", "ozone", "pollen")

NUMBER = re.compile(r"\d+")

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@dataclass(frozen=True, slots=True)
class Task:
    """A question with its answer.

    Example:
        Task("How much warmer is Oslo than 13?", "14", cities=("Oslo",), expression="{Oslo}-13")
    """

    question: str
    answer: str
    cities: tuple[str, ...]  # whose weather has to be asked for, in the order of the question
    expression: str | None  # what has to be computed then, with the cities in braces; None where nothing is

    @property
    def calls(self) -> int:
        return len(self.cities) + (self.expression is not None)

    def written(self, day: str) -> str:
        """The expression with the temperatures of a day."""
        assert self.expression is not None
        return self.expression.format(**{city: temperature(city, day) for city in self.cities})

    def needed(self, day: str) -> list[str]:
        """The calls that lead to the answer, as `written_call` writes them."""
        calls = [written_call("weather", {"city": city}) for city in self.cities]
        if self.expression is not None:
            calls.append(written_call("calculator", {"expression": self.written(day)}))
        return calls

    def conclusion(self, day: str) -> str:
        """What the calls lead to, right or not."""
        if self.expression is not None:
            return str(calculate(self.written(day)))
        return " and ".join(str(temperature(city, day)) for city in self.cities) or self.answer


def weather_report(city: str, day: str, *, irrelevant: int = len(FIELDS)) -> dict[str, object]:
    """The weather of a city on a day, with some irrelevant fields: always the same report, in an order of its own.

    Example:
        weather_report("Oslo", "monday") -> {"city": "Oslo", "wind": 41, ..., "temperature": 27, ..., "rain": 73}
    """
    rng = random.Random(f"{day}/{city}")
    values = {field: rng.randint(10, 99) for field in rng.sample(FIELDS, irrelevant)}
    values["temperature"] = temperature(city, day)
    order = rng.sample(sorted(values), len(values))
    return {"city": city} | {field: values[field] for field in order}


def temperature(city: str, day: str) -> int:
    return random.Random(f"{day}/{city}/temperature").randint(10, 39)


def calculate(expression: str) -> int:
    """The value of an expression of whole numbers, + - * and brackets, such as "(27-13)*2"; ValueError for all else."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
        raise ValueError("only whole numbers, + - * and brackets")

    if len(expression) > 40:
        raise ValueError("longer than 40 characters")
    try:
        return value(ast.parse(expression, mode="eval").body)
    except SyntaxError as error:
        raise ValueError("not an expression") from error


def make_tools(day: str) -> list[Callable]:
    """The two tools as they answer on one day. Training and test have different days: a remembered answer is wrong."""

    def weather(city: str) -> str:
        """The weather report of a city.

        Args:
            city: The city's name.
        """
        if city not in CITIES:
            raise ValueError("no such city")
        return json.dumps(weather_report(city, day), separators=(",", ":"))

    def calculator(expression: str) -> str:
        """The value of an arithmetic expression.

        Args:
            expression: Whole numbers with + - * and brackets.
        """
        return str(calculate(expression))

    return [weather, calculator]


def make_task(calls: int, *, day: str, rng: random.Random) -> Task:
    """A random question that needs `calls` calls."""
    first, second = rng.sample(CITIES, 2)
    one, other = str(rng.randint(10, 39)), str(rng.randint(10, 39))
    match calls:
        case 0:
            return Task(f"{first} has {one}. How warm is {first}?", one, (), None)
        case 1 if rng.random() < 0.5:
            return _temperatures(first, day=day)
        case 1:
            return _difference(one, other, day=day, rng=rng)
        case 2 if rng.random() < 0.5:
            return _temperatures(first, second, day=day)
        case 2:
            return _difference(*rng.choice([(first, one), (one, first)]), day=day, rng=rng)
        case 3:
            return _difference(first, second, day=day, rng=rng)
    raise ValueError(f"questions need 0 to 3 calls, not {calls}")


def _temperatures(*cities: str, day: str) -> Task:
    task = Task(f"How warm {'is' if len(cities) == 1 else 'are'} {' and '.join(cities)}?", "", cities, None)
    return replace(task, answer=task.conclusion(day))


def _difference(one: str, other: str, *, day: str, rng: random.Random) -> Task:
    """How much warmer is `one` than `other`? Each is a city or a number; half of the time the answer is doubled."""
    doubled = rng.random() < 0.5
    cities = tuple(place for place in (one, other) if place in CITIES)
    difference = "-".join(f"{{{place}}}" if place in cities else place for place in (one, other))
    question = f"How much warmer is {one} than {other}{', doubled' if doubled else ''}?"
    task = Task(question, "", cities, f"({difference})*2" if doubled else difference)
    return replace(task, answer=task.conclusion(day))


def make_rows(counts: dict[int, int], *, day: str, seed: int | str) -> list[dict[str, object]]:
    """Dataset rows, `counts[calls]` of each sort, shuffled.

    Example:
        {"prompt": messages, "answer": "14", "calls": 2, "needed": ['weather {"city": "Oslo"}', ...]}
    """
    rng = random.Random(f"{day}/{seed}")
    tasks = [make_task(calls, day=day, rng=rng) for calls, count in counts.items() for _ in range(count)]
    rng.shuffle(tasks)
    return [
        {
            "prompt": [{"role": "user", "content": task.question}],
            "answer": task.answer,
            "calls": task.calls,
            "needed": task.needed(day),
        }
        for task in tasks
    ]


def correct_answer(completions: list[list[dict]], answer: list[str], **_: object) -> list[float]:
    """1.0 where the last message is the answer and nothing else, otherwise 0.0. What is evaluated is this alone."""
    return [float(is_answer(messages, expected)) for messages, expected in zip(completions, answer, strict=True)]


def is_answer(messages: list[dict], answer: str) -> bool:
    last = messages[-1] if messages else {}
    is_final = last.get("role") == "assistant" and not last.get("tool_calls")
    return is_final and (last.get("content") or "").strip() == answer


def needed_calls(completions: list[list[dict]], needed: list[list[str]], **_: object) -> list[float]:
    """The share of the needed calls that were made; a call that repeats one counts as a further one that was missed.

    A question of three calls is at first never answered by chance; this says which step was a step towards it, and that
    looking up once more what is known is none. 0.0 where no call is needed.
    """
    rewards = []
    for messages, wanted in zip(completions, needed, strict=True):
        made = made_calls(messages)
        repeats = len(made) - len(set(made))
        rewards.append(steps_made(wanted, set(made)) / max(1, len(wanted) + repeats))
    return rewards


def steps_made(wanted: list[str], made: set[str]) -> float:
    """How many of the wanted calls were made; where only one is missing, with what is right in the nearest to it."""
    missing = [call for call in wanted if call not in made]
    return len(wanted) - len(missing) + (nearest(missing[0], made) if len(missing) == 1 else 0.0)


def nearest(wanted: str, made: set[str]) -> float:
    """For an expression of the right form, the share of its numbers that are right; 0.0 where none was made."""
    form, numbers = NUMBER.sub("#", wanted), NUMBER.findall(wanted)
    alike = [NUMBER.findall(call) for call in made if NUMBER.sub("#", call) == form and numbers]
    return max((sum(map(eq, numbers, found)) / len(numbers) for found in alike), default=0.0)


def made_calls(messages: list[dict]) -> list[str]:
    functions = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    return [written_call(function["name"], function["arguments"]) for function in functions]


def written_call(name: str, arguments: object) -> str:
    return f"{name} {json.dumps(arguments)}"
