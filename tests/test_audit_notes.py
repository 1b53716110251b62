"""What an audited first step notes besides its checks: rewards that read observations, results of other calls."""

import asyncio
import random
import re
from types import SimpleNamespace

import pytest

from envmask_trl import CallStatus, Segment, Source, StopReason, ToolResult, Trajectory
from envmask_trl.inspect.equal_calls import notes_on_equal_calls
from envmask_trl.inspect.reward_witness import RewardWitness
from envmask_trl.inspect.row_proof import check_saved_together

OBSERVED = {
    "completion_ids": [[10, 20, 11], [10, 21, 12]],
    "completions": [
        [
            {"role": "assistant", "content": ""},
            {"role": "tool", "content": text},
            {"role": "assistant", "content": said},
        ]
        for text, said in (("27", "27"), ("27", "warm"))
    ],
    "completion_texts": ["27 27", "27 warm"],
    "model_texts": ["27", "warm"],
    "answer": ["27", "27"],
}


def notes_of(reward, columns=OBSERVED):
    """What is noted of a reward function, and what the trainer got from it."""
    name = getattr(reward, "__name__", "reward")
    trainer = SimpleNamespace(reward_funcs=[reward], reward_func_names=[name])
    witness = RewardWitness(trainer)
    values = trainer.reward_funcs[0](**columns)
    values = asyncio.run(values) if asyncio.iscoroutine(values) else values
    witness.release()
    return witness.notes(), values


def reads_all(completion_texts, answer, **others):
    return [float(gold in text) for text, gold in zip(completion_texts, answer, strict=True)]


def reads_messages(completions, answer, **others):
    return [
        float(any(gold in message["content"] for message in messages))
        for messages, gold in zip(completions, answer, strict=True)
    ]


async def reads_all_later(**columns):
    return reads_all(**columns)


def needs_a_result(completions, **others):
    return [float(messages[1]["content"]) for messages in completions]  # raises on a blank one


def reads_the_model(model_texts, answer, **others):
    return [float(text == gold) for text, gold in zip(model_texts, answer, strict=True)]


def draws(model_texts, **others):
    return [random.random() for _ in model_texts]


@pytest.mark.parametrize("reward", [reads_all, reads_messages, reads_all_later])
def test_a_reward_that_pays_for_what_a_tool_said_is_noted(reward):
    notes, values = notes_of(reward)
    assert values == [1.0, 1.0]
    assert len(notes) == 1 and f"({reward.__name__}) reads observations: 1 of 2 rollouts" in notes[0]


def reads_numbers(completion_texts, answer, **others):
    return reads_all(completion_texts, map(str, answer))


def reads_one_of_several(completion_texts, answer, **others):
    return reads_all(completion_texts, [golds[0] for golds in answer])


@pytest.mark.parametrize(
    ("reward", "answers"),
    [
        *((reward, ["27", "27"]) for reward in (reads_all, reads_messages, reads_all_later)),
        (reads_numbers, [27, 27]),
        (reads_one_of_several, [["27"], ["27"]]),
    ],
)
def test_a_reward_that_would_pay_a_tool_for_the_answer_is_noted_where_no_tool_gave_it(reward, answers):
    texts = [[{"role": "tool", "content": "13"}, {"role": "assistant", "content": said}] for said in ("27", "warm")]
    notes, values = notes_of(
        reward, OBSERVED | {"completions": texts, "completion_texts": ["13 27", "13 warm"], "answer": answers}
    )
    assert values == [1.0, 0.0]
    assert len(notes) == 1 and f"({reward.__name__}) reads observations: 1 of 2 rollouts" in notes[0]


def test_a_reward_that_cannot_do_without_observations_is_noted_and_not_stopped():
    notes, values = notes_of(needs_a_result)
    assert values == [27.0, 27.0] and "2 of 2 rollouts" in notes[0]


def test_a_reward_that_reads_the_model_is_not_noted():
    assert notes_of(reads_the_model) == ([], [1.0, 0.0])


def test_a_reward_that_draws_random_numbers_draws_the_same_ones_and_the_next_ones():
    random.seed(3)
    expected = [random.random() for _ in range(3)]
    random.seed(3)
    notes, values = notes_of(draws)
    assert notes == [] and [*values, random.random()] == expected


def test_a_reward_is_asked_once_where_there_is_nothing_to_blank():
    asked = []

    def counts(**columns):
        asked.append(columns)
        return [0.0, 0.0]

    notes_of(counts, OBSERVED | {"completion_texts": OBSERVED["model_texts"]})
    notes_of(counts, {name: OBSERVED[name] for name in ("completion_ids", "completions")})  # of a rollout_func
    assert len(asked) == 2


def test_what_a_blindfolded_reward_logs_is_not_logged():
    logged = []

    def logs(completion_texts, log_metric, **others):
        log_metric("share", len(completion_texts))
        return [0.0, 0.0]

    notes_of(logs, OBSERVED | {"log_metric": lambda *values: logged.append(values)})
    assert logged == [("share", 2)]


def rollout(city, content, status=CallStatus.OK):
    """One call of the weather, its result, and an answer."""
    function = {"name": "weather", "arguments": {"city": city}}
    return Trajectory(
        segments=(Segment(Source.PROMPT, (1,)), Segment(Source.MODEL, (10,))),
        stop_reason=StopReason.ANSWERED,
        messages=(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "name": "weather", "content": content},
            {"role": "assistant", "content": "27"},
        ),
        tool_results=(ToolResult("call00000", "weather", content, status, 0.1),),
    )


def test_results_that_reached_the_wrong_rollout_contradict_each_other():
    asked = ["Oslo", "Lima", "Oslo", "Lima"]
    right = {"Oslo": "7", "Lima": "27"}
    assert notes_on_equal_calls([rollout(city, right[city]) for city in asked]) == []
    moved = [rollout(city, right[other]) for city, other in zip(asked, [*asked[1:3], "Oslo", "Lima"], strict=True)]
    (note,) = notes_on_equal_calls(moved)
    assert "weather {\"city\": \"Oslo\"}, answered with '27' and '7'" in note and "2 of 2 calls" in note


def test_a_call_that_failed_or_was_made_once_contradicts_none():
    late = rollout("Oslo", "Error: weather gave no answer within 30 s", CallStatus.TIMEOUT)
    assert notes_on_equal_calls([rollout("Oslo", "7"), late, rollout("Lima", "27")]) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"rewards": {"a": 1.0, "b": 0.0}, "advantage": 1.0},
            r"no weights for the rewards of its 2 functions \(a, b\)",
        ),
        ({"rewards": {"a": None}, "advantage": 1.0}, "not every rollout was saved with a reward"),
        ({}, "not every rollout was saved with a reward"),
        ({"rewards": {"a": 1.0}, "advantage": [0.5, 0.0]}, "not every rollout was saved with one advantage"),
        ({"rewards": {"a": 1.0}, "advantage": 0.5}, "not every rollout was saved with the number of its group"),
    ],
)
def test_rewards_that_a_file_cannot_prove_are_told_with_what_can(row, said):
    check = check_saved_together([{"env_mask": [1], "prompt_ids": [1]} | row])
    assert check.passed is None and re.search(rf"{said}.*; train with audit_first_step=True", check.says)


@pytest.mark.parametrize(("groups", "passed"), [((0, 0, 1, 1), True), ((0, 0, 0, 0), False)])
def test_two_groups_of_one_prompt_have_baselines_of_their_own(groups, passed):
    scored = zip((1.0, 0.0, 1.0, 1.0), (0.7, -0.7, 0.0, 0.0), groups, strict=True)
    rows = [
        {
            "env_mask": [1],
            "prompt_ids": [1],
            "step": 0,
            "rewards": {"a": reward},
            "advantage": advantage,
            "group": group,
        }
        for reward, advantage, group in scored
    ]
    assert check_saved_together(rows).passed is passed
