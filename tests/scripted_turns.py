"""Scripted turns played against a tool, for the tests of the loop. Knows no model and no trainer."""

from functools import cache

from envmask_trl import (
    ScriptedSampler,
    Source,
    run_rollouts,
)
from recipes.weather_calculator.tokenizer import train_tokenizer

PROMPT = [{"role": "user", "content": "How warm is Oslo?"}]


CALL = '<tool_call>{"name": "%s", "arguments": %s}</tool_call><|im_end|>'


ANSWER = "7<|im_end|>"


@cache
def tokenizer():
    return train_tokenizer(
        ["How warm is Oslo?", '{"temp": 7, "city": "Oslo"}', "Error: the tool call could not be read"]
    )


def ids(text: str) -> tuple[int, ...]:
    return tuple(tokenizer()(text, add_special_tokens=False)["input_ids"])


def call(name: str = "weather", arguments: str = '{"city": "Oslo"}') -> str:
    return CALL % (name, arguments)


def weather(city: str) -> str:
    """The weather now.

    Args:
        city: name of a city
    """
    return '{"temp": 7}'


def play(*scripts, tools=(weather,), prompts=None, **options):
    sampler = ScriptedSampler([[ids(turn) for turn in script] for script in scripts])
    prompts = prompts or [PROMPT] * len(scripts)
    return run_rollouts(prompts, tokenizer=tokenizer(), sampler=sampler, tools=tools, **options)


def text(row, source: Source = Source.ENV) -> str:
    return "".join(tokenizer().decode(list(s.token_ids)) for s in row.segments if s.source is source)
