"""A data set is masked once: what cannot be masked is dropped, counted and shown, and too much of it ends the run."""

import json

import pytest
import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from envmask_trl import MaskReport, PartWeights, TooManyDropped, WeightedSFTTrainer, mask_dataset, mask_observations

from .test_sft_tags import REACT
from .tiny import add, tiny_model, tiny_tokenizer, user

BROKEN = REACT.replace("7 degrees", "7\nThought: he wants 8")


def react_rows(good, bad, source="a.jsonl"):
    rows = [{"prompt": "Q: ", "completion": REACT, "source": source}] * good
    return rows + [{"prompt": "Q: ", "completion": BROKEN, "source": "bad.jsonl"}] * bad


def call_message(thought="", **arguments):
    function = {"name": "add", "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": thought, "tool_calls": [{"type": "function", "function": function}]}


def result(content):
    return {"role": "tool", "name": "add", "content": content}


def says(text):
    return {"role": "assistant", "content": text}


def learned(messages, **options):
    tokenizer = tiny_tokenizer()
    out = mask_observations({"messages": [messages]}, tokenizer=tokenizer, tools=[add], **options)
    return tokenizer.decode([label for label in out["labels"][0] if label != -100])


def config(tmp_path, **fields):
    options = {"max_steps": 1, "per_device_train_batch_size": 2, "save_strategy": "no", "report_to": []}
    return SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **{**options, **fields})


@pytest.mark.parametrize("num_proc", [None, 2])
def test_a_row_that_cannot_be_masked_is_dropped_and_reported_in_every_process(num_proc):
    dataset = Dataset.from_list(react_rows(3, 1) + react_rows(2, 0, "b.jsonl"))
    rows, report = mask_dataset(
        dataset, tiny_tokenizer(), tags="react", max_drop_rate=0.2, source_column="source", num_proc=num_proc
    )
    assert rows.column_names == ["source", "input_ids", "labels"] and len(rows) == 5
    assert (report.rows, report.kept, report.drop_rate) == (6, 5, pytest.approx(1 / 6))
    assert report.reasons == {"not_a_turn": 1}
    assert report.sources == {"a.jsonl": (3, 0), "bad.jsonl": (1, 1), "b.jsonl": (2, 0)}
    (example,) = report.examples["not_a_turn"]
    assert example.startswith("row 3: the tags ['Thought:', 'Thought:', 'Final Answer:'] in ")
    assert report.trained_tokens == sum(label != -100 for labels in rows["labels"] for label in labels)
    assert "5 of 6 rows kept" in str(report) and "bad.jsonl: 1 of 1 dropped" in str(report)


def test_more_drops_than_allowed_end_the_run_before_training():
    dataset = Dataset.from_list(react_rows(40, 1))
    with pytest.raises(
        TooManyDropped, match=r"^1 of 41 rows were dropped \(2.4%\), most of them from the data set"
    ) as e:
        mask_dataset(dataset, tiny_tokenizer(), tags="react")
    assert e.value.report.reasons == {"not_a_turn": 1}
    rows, _ = mask_dataset(Dataset.from_list(react_rows(50, 1)), tiny_tokenizer(), tags="react")
    assert len(rows) == 50


def test_tags_that_no_row_has_end_the_run_instead_of_training_on_observations():
    with pytest.raises(TooManyDropped, match="none of 3 rows has an observation between "):
        mask_dataset(Dataset.from_list(react_rows(3, 0)), tiny_tokenizer(), tags="search_r1")


def test_a_row_whose_learned_tokens_are_all_cut_is_reported():
    """A limit shorter than the prompt of one of two rows."""
    dataset = Dataset.from_list(
        [{"prompt": "Q: ", "completion": REACT}, {"prompt": "a long prompt " * 9, "completion": REACT}]
    )
    rows, report = mask_dataset(dataset, tiny_tokenizer(), tags="react", max_length=40, max_drop_rate=0.5)
    assert [len(ids) for ids in rows["input_ids"]] == [40] and report.cut == 1
    (example,) = report.examples["cut_by_max_length"]
    assert example.startswith("row 1: the first token that is learned is number ") and "max_length is 40" in example


def test_every_turn_is_learned_unless_only_the_last_is_asked_for():
    """Three turns of the model."""
    messages = [
        *user("1 + 2 + 3?"),
        call_message(a=1, b=2),
        result("3"),
        call_message(a=3, b=3),
        result("6"),
        says("6"),
    ]
    assert learned(messages).count("<|im_end|>") == 3
    assert learned(messages, weights=PartWeights(last_turn_only=True)) == "6<|im_end|>"


def test_turns_that_failed_are_left_out_on_request_and_stay_visible():
    messages = [
        *user("1 + 2?"),
        call_message(a=1),
        result("Error: missing b"),
        call_message(a=1, b=2),
        result("3"),
        says("3"),
    ]
    weights = PartWeights(mask_failed_turns=True)
    assert learned(messages).count("<tool_call>") == 2
    assert learned(messages, weights=weights).count("<tool_call>") == 1
    out = mask_observations({"messages": [messages]}, tokenizer=tiny_tokenizer(), tools=[add], weights=weights)
    assert "missing b" in tiny_tokenizer().decode(out["input_ids"][0])


@pytest.mark.parametrize(("content", "failed"), [([{"type": "text", "text": "Error: no"}], True), ("Errors: 0", False)])
def test_a_result_failed_if_its_text_begins_as_the_loop_writes_errors(content, failed):
    messages = [*user("1?"), call_message(a=1), {**result(""), "content": content}, says("3")]
    weights = PartWeights(mask_failed_turns=True)
    assert learned(messages, weights=weights).count("<tool_call>") == (0 if failed else 1)


def test_the_thought_of_an_answer_in_blocks_is_weighed_as_that_of_a_text():
    text = "<think>so</think>3"
    blocks = [{"type": "text", "text": "<think>so</think>"}, {"type": "text", "text": "3"}]
    for content in (text, blocks):
        messages = [*user("1?"), {**says(""), "content": content}]
        assert learned(messages, weights=PartWeights(thought=0.0)) == "3<|im_end|>"


def test_thoughts_calls_and_answers_are_weighed_apart():
    messages = [*user("1 + 2?"), call_message("I add.", a=1, b=2), result("3"), says("<think>so</think>3")]
    assert learned(messages, weights=PartWeights(thought=0.0)).replace(" ", "") == (
        '<tool_call>\n{"name":"add","arguments":{"a":1,"b":2}}\n</tool_call><|im_end|>3<|im_end|>'
    )
    assert learned(messages, weights=PartWeights(call=0.0, answer=0.0)) == "I add.<think>so</think>"
    text = {"prompt": ["Q: "], "completion": [REACT]}
    out = mask_observations(text, tokenizer=tiny_tokenizer(), tags="react", weights=PartWeights(thought=0.0))
    assert tiny_tokenizer().decode([label for label in out["labels"][0] if label != -100]) == (
        "Action: weather[Oslo]Final Answer: 7<|im_end|>"
    )


def test_a_call_of_one_tool_has_no_arguments_of_another_after_arrow():
    """One struct type per column fills the keys of other rows with null."""
    rows = [
        [
            *user("a"),
            {**says(""), "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]},
            result("3"),
            says("3"),
        ]
        for arguments in ({"a": 1, "b": 2}, {"city": "Oslo"})
    ]
    dataset = Dataset.from_dict({"messages": rows})
    assert dataset[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2, "city": None}
    masked, report = mask_dataset(dataset, tiny_tokenizer(), tools=[add])
    texts = [tiny_tokenizer().decode(ids) for ids in masked["input_ids"]]
    assert '{"a": 1, "b": 2}' in texts[0] and '{"city": "Oslo"}' in texts[1] and report.kept == 2


def test_each_row_may_bring_its_own_tools():
    schema = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"properties": {}}}}
    messages = [*user("a"), says("3")]
    batch = {"messages": [messages] * 2, "tools": [json.dumps([schema]), None]}
    first, second = mask_observations(batch, tokenizer=tiny_tokenizer())["input_ids"]
    assert tiny_tokenizer().decode(first).startswith("<|im_start|>system\nadd\n") and len(second) < len(first)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("not json", "tools: the row's `tools` is no JSON"),
        ([7], "tools: the row's `tools` is '[7]', expected a list of JSON schemas"),
        ([{"type": "function", "function": {"name": 7}}], "tools: the chat template cannot show the row's `tools`"),
    ],
)
def test_a_row_whose_own_tools_cannot_be_shown_is_dropped_and_the_others_are_kept(tools, said):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for tool in tools or [] %}{{ tool.function.name + '' }}{% endfor %}" + tokenizer.chat_template
    )
    batch = {"messages": [[*user("a"), says("3")]] * 2, "tools": [tools, None]}
    masked = mask_observations(batch, tokenizer=tokenizer, keep_problems=True)
    assert masked["problem"][0].startswith(said) and masked["problem"][1] == ""
    with pytest.raises(ValueError, match="row 0: the"):
        mask_observations(batch, tokenizer=tokenizer)


def test_a_chat_without_tools_has_no_observation():
    chat = [*user("a"), says("3"), *user("b"), says("4")]
    masked = mask_observations({"messages": [chat]}, tokenizer=tiny_tokenizer(), keep_problems=True)
    assert masked["num_observations"] == [0] and masked["problem"] == [""]


def test_fractional_weights_need_the_weighted_trainer_and_scale_each_tokens_loss(tmp_path):
    rows, _ = mask_dataset(
        Dataset.from_list(react_rows(2, 0)), tiny_tokenizer(), tags="react", weights=PartWeights(thought=0.25)
    )
    assert {weight for row in rows["loss_weights"] for weight in row} == {0.0, 0.25, 1.0}
    plain = rows.map(lambda row: {"loss_weights": [1.0] * len(row["input_ids"])})
    losses = [
        loss(WeightedSFTTrainer, tmp_path, rows),
        loss(WeightedSFTTrainer, tmp_path, plain),
        loss(SFTTrainer, tmp_path, plain.remove_columns("loss_weights")),
    ]
    assert losses[1] == pytest.approx(losses[2], rel=1e-6)
    assert losses[0] == pytest.approx(weighted_by_hand(rows), rel=1e-5) and losses[0] < losses[1]


def loss(trainer_class, tmp_path, rows):
    tokenizer = tiny_tokenizer()
    trainer = trainer_class(tiny_model(tokenizer), config(tmp_path), train_dataset=rows, processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    return trainer.compute_loss(trainer.model, batch).item()


def weighted_by_hand(rows):
    """sum(weight * -log p) / labelled tokens, of each row forwarded alone."""
    model, total, count = tiny_model(tiny_tokenizer()), 0.0, 0
    for row in rows:
        logps = model(torch.tensor([row["input_ids"]])).logits[0, :-1].detach().log_softmax(-1)
        for place, label in enumerate(row["labels"][1:]):
            if label != -100:
                total -= row["loss_weights"][place + 1] * float(logps[place, label])
                count += 1
    return total / count


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"packing": True}, "packing is True, which weights do not go with"),
        ({"loss_type": "dft"}, "loss_type is 'dft'"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1"),
    ],
)
def test_what_weights_do_not_go_with_is_refused(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        WeightedSFTTrainer(tiny_model(tiny_tokenizer()), config(tmp_path, **fields))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PartWeights(thought=-1.0), "expected finite numbers, none below 0 and one above"),
        (lambda: PartWeights(0.0, 0.0, 0.0), "expected finite numbers, none below 0 and one above"),
        (lambda: mask_dataset([], tiny_tokenizer()), "found list, expected a datasets.Dataset"),
        (lambda: mask_dataset(Dataset.from_list(react_rows(1, 0)), tiny_tokenizer(), source_column="s"), "is 's'"),
        (lambda: MaskReport().check(0.02), "the data set has no rows"),
    ],
)
def test_a_wrong_option_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
