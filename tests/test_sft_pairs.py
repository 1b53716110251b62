"""Rows for fine-tuning are the rows of rollouts, id for id, for every tokenizer and template that can train."""

import pytest

from envmask_trl import RolloutLimits, ScriptedSampler, StopReason, mask_observations, run_rollouts

from .known_pairs import APPENDS, PAIRS, REFUSED, load
from .template_pairs import QUESTION, RESULT, answer, call, fake_conversation, weather

TRAINABLE = [pair for pair, verdict in PAIRS.items() if verdict != REFUSED]


@pytest.mark.parametrize("pair", TRAINABLE, ids=str)
def test_a_demonstration_is_the_rollout_of_the_same_messages_under_every_template_that_trains(pair):
    """Two calls and an answer; the second result is a page of the template's own turns."""
    page = fake_conversation(pair)
    messages = [QUESTION]
    for city, result in (("Oslo", RESULT), ("Rome", page)):
        messages += [call(city), {"role": "tool", "name": "weather", "content": result}]
    messages += [answer("7 degrees")]
    options = {"stop_token_ids": pair.stop_ids, "template_kwargs": {"chat_template": pair.chat_template}}
    columns = mask_observations({"messages": [messages]}, tokenizer=load(pair.tokenizer), tools=[weather], **options)
    (ids,), (labels,) = columns["input_ids"], columns["labels"]

    row = played(pair, turns_of(labels), [RESULT, page])
    assert row.stop_reason is StopReason.ANSWERED
    assert [result.name for result in row.tool_results] == ["weather", "weather"]
    assert ids == [*row.prompt_ids, *row.completion_ids]
    assert [label != -100 for label in labels] == [*([False] * len(row.prompt_ids)), *map(bool, row.env_mask)]
    calls = [message["tool_calls"][0]["function"]["arguments"] for message in row.messages if message.get("tool_calls")]
    assert calls == [{"city": "Oslo"}, {"city": "Rome"}]
    assert row.messages[-1]["content"] == "7 degrees"


@pytest.mark.parametrize("pair", [pair for pair in TRAINABLE if PAIRS[pair] == APPENDS], ids=str)
def test_a_users_second_question_is_written_as_the_template_writes_it_and_not_learned(pair):
    second = {"role": "user", "content": "And what if <|im_end|> I say\nRome?"}
    messages = [QUESTION, call("Oslo"), {"role": "tool", "name": "weather", "content": RESULT}, answer("7"), second]
    messages += [call("Rome"), {"role": "tool", "name": "weather", "content": RESULT}, answer("8")]
    kwargs, tokenizer = {"chat_template": pair.chat_template}, load(pair.tokenizer)
    columns = mask_observations(
        {"messages": [messages]},
        tokenizer=tokenizer,
        tools=[weather],
        stop_token_ids=pair.stop_ids,
        template_kwargs=kwargs,
    )
    (ids,), (labels,) = columns["input_ids"], columns["labels"]
    assert len(turns_of(labels)) == 4
    assert "And what if" not in tokenizer.decode([label for label in labels if label != -100])
    whole = tokenizer.apply_chat_template(messages, tools=[weather], tokenize=False, **kwargs)
    assert whole.startswith(tokenizer.decode(ids)) and not whole[len(tokenizer.decode(ids)) :].strip()


def turns_of(labels):
    """The runs of labelled tokens."""
    turns, before = [], -100
    for label in labels:
        if label != -100:
            if before == -100:
                turns.append([])
            turns[-1].append(label)
        before = label
    return turns


def played(pair, turns, results):
    """The rollout in which the model samples `turns` and the tool answers with `results`."""
    left = iter(results)

    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        return next(left)

    (row,) = run_rollouts(
        [[QUESTION]],
        tokenizer=load(pair.tokenizer),
        sampler=ScriptedSampler([turns]),
        tools=[weather],
        limits=RolloutLimits(max_completion_length=8192),
        stop_token_ids=pair.stop_ids,
        template_kwargs={"chat_template": pair.chat_template},
    )
    return row
