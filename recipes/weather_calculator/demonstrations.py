"""Demonstrations of mixed quality, as people label them, one JSON object a line. Knows tasks, no tokens.

    tidy      calls what is needed, answers with what the calls gave
    guess     skips the tools and makes an answer up
    mistaken  calls the wrong city, computes the wrong thing or misreads, and answers with the result
    broken    writes a call that is not JSON
Questions of three calls are never demonstrated: composing them is left to GRPO.
"""

import json
import random
from pathlib import Path

from .tasks import CITIES, FIELDS, Task, calculate, make_task, temperature, weather_report

FULL_REPORTS_AT = 0.5  # the share of the tidy part after which weather reports have all their fields
TOKENIZER_ROWS = 2_000  # enough to meet every city often
MIX = {"tidy": 0.40, "guess": 0.28, "mistaken": 0.17, "broken": 0.15}  # of the untidy part of the file


def write_demonstrations(path: Path, *, tidy: int, mixed: int, seed: int) -> list[dict]:
    """Write `tidy` good demonstrations, then `mixed` of mixed quality, in the order in which they are learned."""
    rng = random.Random(f"demonstrations/{seed}")
    rows = [demonstration("tidy", progress=row / tidy, rng=rng) for row in range(tidy)]
    rows += [demonstration(rng.choices(list(MIX), list(MIX.values()))[0], progress=1.0, rng=rng) for _ in range(mixed)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def demonstration(quality: str, *, progress: float, rng: random.Random) -> dict:
    """One conversation, recorded on a day of its own: {"messages": [...], "quality": "tidy"}.

    `progress` from 0 to 1 is the curriculum: short conversations and reports first, then more and more of the long.
    """
    day = f"recorded {rng.random()}"
    calls = rng.choices((0, 1, 2), (1 - progress / 2, 1, 1.5 * progress))[0]
    irrelevant = round(len(FIELDS) * min(1.0, progress / FULL_REPORTS_AT))
    task = make_task(calls, day=day, rng=rng)
    ask = {"role": "user", "content": task.question}
    match quality:
        case "tidy":
            turns = _work_through(task, day=day, irrelevant=irrelevant)
        case "mistaken" if task.calls:
            turns = _work_through(_misread(task, rng=rng), day=day, irrelevant=irrelevant)
        case "guess" | "mistaken":
            turns = [_says(_made_up(task, rng=rng))]
        case "broken":
            turns = [_break(_work_through(task, day=day, irrelevant=irrelevant)[0], task=task, rng=rng)]
    return {"messages": [ask, *turns], "quality": quality}


def tokenizer_texts(rows: list[dict]) -> list[str]:
    """What a tokenizer has to know: questions, calls, reports, and the chat template's own words."""
    texts = ["system\nuser\nassistant\n", "weather(city), calculator(expression)"] * 100
    for message in (message for row in rows[-TOKENIZER_ROWS:] for message in row["messages"]):
        functions = [call["function"] for call in message.get("tool_calls", [])]
        texts.append(message["content"])
        texts += [f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}' for function in functions]
    return texts


def _work_through(task: Task, *, day: str, irrelevant: int) -> list[dict]:
    """Ask for each city's weather, compute if something is to be computed, answer."""
    turns = []
    temperatures = {city: temperature(city, day) for city in task.cities}
    for city in task.cities:
        turns.append(_calls("weather", city=city))
        report = json.dumps(weather_report(city, day, irrelevant=irrelevant), separators=(",", ":"))
        turns.append({"role": "tool", "name": "weather", "content": report})
    if task.expression is None:
        return [*turns, _says(" and ".join(map(str, temperatures.values())) or task.answer)]
    expression = task.expression.format(**temperatures)
    result = str(calculate(expression))
    return [
        *turns,
        _calls("calculator", expression=expression),
        {"role": "tool", "name": "calculator", "content": result},
        _says(result),
    ]


def _misread(task: Task, *, rng: random.Random) -> Task:
    """The task as somebody hasty reads it: a wrong city, a wrong sign, or a call that nobody needs."""
    if task.expression is not None:
        return Task(task.question, "", task.cities, task.expression.replace("-", "+"))
    wrong = rng.choice(CITIES)
    return Task(task.question, "", (wrong, *task.cities[1:]), None)


def _made_up(task: Task, *, rng: random.Random) -> str:
    if " and " in task.answer:
        return f"{rng.randint(10, 39)} and {rng.randint(10, 39)}"
    return str(rng.randint(10, 39))


def _break(turn: dict, *, task: Task, rng: random.Random) -> dict:
    """The first call without its last bracket; for a question without calls, a call of nothing."""
    if not turn.get("tool_calls"):
        turn = _calls("weather", city=rng.choice(CITIES))
    function = turn["tool_calls"][0]["function"]
    broken = {**function, "arguments": function["arguments"].removesuffix("}")}
    return {**turn, "tool_calls": [{"type": "function", "function": broken}]}


def _calls(name: str, **arguments: str) -> dict:
    """An assistant's turn with one call; the arguments as JSON text, so that columns of both tools fit one table."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _says(text: str) -> dict:
    return {"role": "assistant", "content": text}
