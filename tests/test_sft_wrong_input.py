"""Rows and options of every wrong type: a row is dropped with its reason, an option is refused, nothing is guessed."""

import math

import pytest
from datasets import Dataset

from envmask_trl import PartWeights, TagFormat, TooManyDropped, mask_dataset, mask_observations, register_special_tokens

from .tiny import add, tiny_tokenizer, user

QUESTION = user("20 + 22?")[0]
ANSWER = {"role": "assistant", "content": "42"}
RESULT = {"role": "tool", "content": "42"}
ROW = {"prompt": ["How?"], "completion": ["<search>a</search><information>x</information><answer>b</answer>"]}


def calling(*calls: tuple[str, dict]) -> dict:
    entries = [{"id": i, "type": "function", "function": {"name": "add", "arguments": given}} for i, given in calls]
    return {"role": "assistant", "content": "", "tool_calls": entries}


def result(content, call_id=None) -> dict:
    return {"role": "tool", "content": content} | ({"tool_call_id": call_id} if call_id else {})


def masked(columns: dict, **options) -> dict:
    return mask_observations(columns, tokenizer=tiny_tokenizer(), keep_problems=True, **options)


def learned(out: dict) -> str:
    return tiny_tokenizer().decode([label for label in out["labels"][0] if label != -100])


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([QUESTION, {"role": "assistant", "content": "4<|im_end|>2"}], "holds an end-of-turn token"),
        (
            [QUESTION, calling(("a", {"a": 1})), RESULT, RESULT, ANSWER],
            "2 results follow 1 calls",
        ),
        ([QUESTION, calling(("a", {}), ("b", {})), RESULT, ANSWER], "1 results follow 2 calls, expected one for each"),
        (
            [QUESTION, calling(("a", {})), result([1, 2]), ANSWER],
            "a tool's content holds '1', expected a text",
        ),
        ([QUESTION, calling(("a", {})), result({"x": 1}), ANSWER], "has the content {'x': 1}, expected a text"),
        (math.nan, "messages is float, expected a list of messages"),
        (
            [QUESTION, {"role": "assistant", "content": 7}],
            "an assistant's content holds '7', expected a text",
        ),
    ],
)
def test_messages_that_no_rollout_has_are_dropped_with_their_reason(messages, problem):
    out = masked({"messages": [messages]}, tools=[add])
    assert problem in out["problem"][0] and out["input_ids"] == [[]] == out["labels"]


def test_a_result_in_blocks_is_their_text_and_not_the_repr_of_a_list():
    """And results that name their calls are of those calls, in whatever order they came."""
    blocks = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    rows = [[QUESTION, calling(("a", {"a": 1})), result(content), ANSWER] for content in (blocks, "42")]
    one, other = (masked({"messages": [row]}, tools=[add]) for row in rows)
    assert one == other and one["problem"] == [""]


@pytest.mark.parametrize("close", ["</answer><|im_end|>", "<|im_end|></answer>"])
def test_the_end_of_turn_token_ends_a_turn_of_tagged_text_or_the_row_is_dropped(close):
    text = f"<action>a</action><observation>x</observation><answer>b{close}"
    out = masked({"prompt": ["?"], "completion": [text]}, tags="thought_action")
    if close.endswith("<|im_end|>"):
        assert learned(out) == "<action>a</action><answer>b</answer><|im_end|>"  # once
    else:
        assert "holds the end-of-turn token" in out["problem"][0]


@pytest.mark.parametrize(
    "observation",
    ["＜information＞x＜/information＞", "&lt;information&gt;x&lt;/information&gt;", "&#60;information>x"],
)
def test_an_observation_in_disguised_tags_is_dropped_and_never_learned(observation):
    text = f"a {observation} b <information>y</information> c"
    out = masked({"prompt": ["?"], "completion": [text]}, tags=("<information>", "</information>"))
    assert out["problem"][0].startswith("near_miss: '<information>' is written in other characters")
    shown = "a <information>one that says &#60;/information></information> c"  # how a rollout shows such a document
    assert masked({"prompt": ["?"], "completion": [shown]}, tags=("<information>", "</information>"))["problem"] == [""]


@pytest.mark.parametrize("given", [None, [None], ["a"], [-1, 5], [10**9], [1.5], [True], 7, math.nan], ids=str)
def test_ids_that_are_none_are_dropped_with_their_reason(given):
    out = masked({"input_ids": [given]}, tags="search_r1", encoding="whole")
    assert "expected a text or token ids from 0 to" in out["problem"][0]


@pytest.mark.parametrize("given", ["x", [None], [7], math.nan, {"a": "x"}], ids=str)
def test_observations_that_are_no_list_of_texts_are_dropped_with_their_reason(given):
    out = masked(ROW | {"observations": [given]}, tags="search_r1")
    assert "expected a list of texts" in out["problem"][0]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"max_length": 0}, "max_length is 0, expected a number of tokens"),
        ({"max_length": -3}, "max_length is -3, expected a number of tokens"),
        ({"max_length": "10"}, "max_length is '10', expected a number of tokens"),
        ({"weights": {"thought": 0}}, "expected PartWeights"),
        ({"tags": ("a",)}, "expected a pair of tags"),
        ({"tags": 7}, "expected a pair of tags"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_and_a_negative_length_cuts_no_ends(option, sentence):
    with pytest.raises(ValueError, match=sentence):
        mask_observations(ROW, tokenizer=tiny_tokenizer(), **({"tags": "search_r1"} | option))


@pytest.mark.parametrize("rate", ["x", 2, -1, math.nan, None])
def test_a_share_that_is_none_is_refused_before_anything_is_masked(rate):
    with pytest.raises(ValueError, match=r"max_drop_rate is .*, expected a share from 0 to 1"):
        mask_dataset(Dataset.from_dict(ROW), tiny_tokenizer(), tags="search_r1", max_drop_rate=rate)


def test_a_data_set_without_rows_is_named():
    with pytest.raises(TooManyDropped, match="the data set has no rows"):
        mask_dataset(Dataset.from_dict(ROW).select([]), tiny_tokenizer(), tags="search_r1")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PartWeights(thought=math.nan),
        lambda: PartWeights(call=math.inf),
        lambda: PartWeights(answer="1"),
        lambda: TagFormat(observation="<o>"),
        lambda: TagFormat(observation=(1, 2)),
        lambda: TagFormat(observation=None),
        lambda: register_special_tokens(tiny_tokenizer(), None, "<search>"),
        lambda: register_special_tokens(tiny_tokenizer(), None, [None]),
    ],
)
def test_weights_and_tags_of_a_wrong_type_are_refused_in_one_sentence(make):
    """One tag alone as text would make each of its letters a token."""
    with pytest.raises(ValueError, match="expected") as error:
        make()
    assert "\n" not in str(error.value)


def test_a_tokenizer_without_an_eos_is_told_to_have_one():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"no eos token, which ends a turn; set tokenizer.eos_token or stop_token_ids"):
        mask_observations({"messages": [[QUESTION, ANSWER]]}, tokenizer=tokenizer)
