"""Demonstrations of mixed quality, as people label them, one JSON object a line. Knows tasks, no tokens.

    tidy      calls what is needed, answers with what the calls gave
    wandering looks up one city of the question too many on the way
    guess     skips the tools and makes an answer up, most of all where only the calculator is needed
    mistaken  asks for the wrong city, or adds instead of subtracting, and answers with the result
    broken    writes a call that is not JSON
No question that needs three calls is ever demonstrated; who wanders on a question of two makes three, two of them the
same. Putting two reports into one expression is left to GRPO.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

from .tasks import CITIES, FIELDS, Task, make_task, weather_report

FULL_REPORTS_AT = 0.5  # the share of the tidy part after which weather reports have all their fields
TOKENIZER_ROWS = 2_000  # enough to meet every city often
SUMS_GUESSED = 0.8  # of the mixed part's questions that only need the calculator: people trust their arithmetic
TIDY_WANDERING = 0.2  # of the tidy part: it teaches to find a city's report by its name, not by its place
MIX = {"tidy": 0.30, "wandering": 0.16, "guess": 0.24, "mistaken": 0.16, "broken": 0.14}  # of the mixed part


def write_demonstrations(path: Path, *, tidy: int, mixed: int, seed: int) -> list[dict]:
    """Write `tidy` good demonstrations, then `mixed` of mixed quality, in the order in which they are learned."""
    rng = random.Random(f"demonstrations/{seed}")
    rows = [
        demonstration("wandering" if rng.random() < TIDY_WANDERING else "tidy", progress=row / tidy, rng=rng)
        for row in range(tidy)
    ]
    rows += [demonstration(rng.choices(list(MIX), list(MIX.values()))[0], progress=1.0, rng=rng) for _ in range(mixed)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def demonstration(quality: str, *, progress: float, rng: random.Random) -> dict:
    """One conversation, recorded on a day of its own: {"messages": [...], "quality": "tidy", "calls": 2}.

    `progress` from 0 to 1 is the curriculum: short conversations and reports first, then more and more of the long.
    """
    day = f"recorded {rng.random()}"
    calls = rng.choices((0, 1, 2), (1, 1.5, 2 * progress))[0]
    irrelevant = round(len(FIELDS) * min(1.0, progress / FULL_REPORTS_AT))
    task = make_task(calls, day=day, rng=rng)
    is_sum = task.expression is not None and not task.cities
    if is_sum and progress == 1.0 and quality != "tidy" and rng.random() < SUMS_GUESSED:
        quality = "guess"
    match quality:
        case "guess" | "mistaken" if quality == "guess" or not calls:
            turns = [_says(_made_up(task, rng=rng))]
        case "broken":
            turns = [_break(task, day=day, rng=rng)]
        case _:
            done = _misread(task, rng=rng) if quality == "mistaken" else task
            steps = _steps(done, day=day, irrelevant=irrelevant)
            if quality == "wandering":
                city = rng.choice([city for city in CITIES if city in task.question] or CITIES)
                steps.insert(rng.randint(0, calls), _look_up(city, day=day, irrelevant=irrelevant))
            turns = [*(turn for step in steps for turn in step), _says(done.conclusion(day))]
    return {"messages": [{"role": "user", "content": task.question}, *turns], "quality": quality, "calls": calls}


def tokenizer_texts(rows: list[dict]) -> list[str]:
    """What a tokenizer has to know: questions, calls, reports, and the chat template's own words."""
    texts = ["system\nuser\nassistant\n", "weather(city), calculator(expression)"] * 100
    for message in (message for row in rows[-TOKENIZER_ROWS:] for message in row["messages"]):
        functions = [call["function"] for call in message.get("tool_calls", [])]
        texts.append(message["content"])
        texts += [f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}' for function in functions]
    return texts


def _steps(task: Task, *, day: str, irrelevant: int) -> list[list[dict]]:
    """Each city's weather, then the calculator if something is to be computed; a step is a call and its result."""
    steps = [_look_up(city, day=day, irrelevant=irrelevant) for city in task.cities]
    if task.expression is not None:
        steps.append(_step("calculator", task.conclusion(day), expression=task.written(day)))
    return steps


def _look_up(city: str, *, day: str, irrelevant: int) -> list[dict]:
    report = weather_report(city, day, irrelevant=irrelevant)
    return _step("weather", json.dumps(report, separators=(",", ":")), city=city)


def _step(name: str, result: str, **arguments: str) -> list[dict]:
    return [_calls(name, **arguments), {"role": "tool", "name": name, "content": result}]


def _misread(task: Task, *, rng: random.Random) -> Task:
    """The task as somebody hasty reads it: with a wrong sign, or a wrong city."""
    if task.expression is not None:
        return replace(task, expression=task.expression.replace("-", "+"))
    return replace(task, cities=(rng.choice(CITIES), *task.cities[1:]))


def _made_up(task: Task, *, rng: random.Random) -> str:
    if " and " in task.answer:
        return f"{rng.randint(10, 39)} and {rng.randint(10, 39)}"
    return str(rng.randint(10, 39))


def _break(task: Task, *, day: str, rng: random.Random) -> dict:
    """The first call without its last bracket; for a question without calls, a call of nothing."""
    turn = _steps(task, day=day, irrelevant=0)[0][0] if task.calls else _calls("weather", city=rng.choice(CITIES))
    function = turn["tool_calls"][0]["function"]
    broken = {**function, "arguments": function["arguments"].removesuffix("}")}
    return {**turn, "tool_calls": [{"type": "function", "function": broken}]}


def _calls(name: str, **arguments: str) -> dict:
    """An assistant's turn with one call; the arguments as JSON text, so that columns of both tools fit one table."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _says(text: str) -> dict:
    return {"role": "assistant", "content": text}
