"""Demonstrations have the ids and the mask that a rollout of the same messages has."""

import pytest
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from envmask_trl import ScriptedSampler, mask_observations, run_rollouts

from .real_tokenizers import chat_template, load
from .tiny import add, answer, call, tiny_model, tiny_tokenizer, user

QUESTION = user("1 + 2?")


def demonstration(*turns):
    return [*QUESTION, *turns]


def call_message(name="add", call_id=None, **arguments):
    entry = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [entry | ({"id": call_id} if call_id else {})]}


def result(content):
    return {"role": "tool", "name": "add", "content": content}


def masked(messages, tokenizer, **options):
    out = mask_observations({"messages": [messages]}, tokenizer=tokenizer, tools=[add], **options)
    return out["input_ids"][0], out["labels"][0]


def test_a_demonstration_and_the_rollout_of_the_same_messages_are_the_same_row():
    tokenizer = tiny_tokenizer()
    turns = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (call("add", a=1, b=2), answer("3"))]
    (row,) = run_rollouts([QUESTION], tokenizer=tokenizer, sampler=ScriptedSampler([turns]), tools=[add])
    ids, labels = masked([*QUESTION, *row.messages], tokenizer)
    assert ids == [*row.prompt_ids, *row.completion_ids]
    assert [label != -100 for label in labels] == [False] * len(row.prompt_ids) + [bool(own) for own in row.env_mask]
    assert [label for label in labels if label != -100] == [token for turn in turns for token in turn]


@pytest.mark.parametrize(
    ("name", "template"),
    [("qwen3", "qwen3"), ("qwen3", "qwen3_training"), ("qwen2.5", "qwen2_5"), ("llama3.1", "llama3_1")],
)
def test_labels_are_what_the_template_writes_for_the_assistant_and_its_end(name, template):
    tokenizer = load(name)
    tokenizer.chat_template = chat_template(template)
    turns = (call_message(a=1, b=2), result("3"), {"role": "assistant", "content": "three"})
    ids, labels = masked(demonstration(*turns), tokenizer)
    learned = tokenizer.decode([label for label in labels if label != -100])
    seen = tokenizer.decode([token for token, label in zip(ids, labels, strict=True) if label == -100])
    assert learned.count(tokenizer.eos_token) == 2 and learned.endswith("three" + tokenizer.eos_token)
    assert '"name": "add"' in learned and "3" not in learned.replace("three", "")
    assert "three" not in seen and "user" in seen


def test_a_broken_call_written_as_text_is_learned_as_text():
    broken = '<tool_call>\n{"name": "add", "arguments": {"a": 1</tool_call>'
    turns = (
        {"role": "assistant", "content": broken},
        result("Error: unreadable"),
        {"role": "assistant", "content": "?"},
    )
    tokenizer = tiny_tokenizer()
    ids, labels = masked(demonstration(*turns), tokenizer)
    learned = tokenizer.decode([label for label in labels if label != -100])
    assert learned == broken + "<|im_end|>?<|im_end|>"
    assert "Error: unreadable" in tokenizer.decode(ids)


def test_an_observation_that_nothing_follows_is_not_part_of_the_row():
    ids, labels = masked(demonstration(call_message(a=1, b=2), result("3")), tiny_tokenizer())
    assert labels[-1] == tiny_tokenizer().eos_token_id and len(ids) == len(labels)


def test_columns_that_arrow_filled_with_nulls_are_read():
    dataset = Dataset.from_dict(
        {
            "messages": [
                demonstration({"role": "assistant", "content": "3"}),
                demonstration(call_message(a=1, b=2), result("3"), {"role": "assistant", "content": "3"}),
            ]
        }
    )
    tokenizer = tiny_tokenizer()
    mapped = dataset.map(
        mask_observations, batched=True, remove_columns=["messages"], fn_kwargs={"tokenizer": tokenizer, "tools": [add]}
    )
    assert mapped.column_names == ["input_ids", "labels"]
    assert [len(ids) for ids in mapped["input_ids"]] == [len(labels) for labels in mapped["labels"]]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (QUESTION, "row 0: no assistant message"),
        (demonstration({"role": "assistant", "content": "3"}, {"role": "system", "content": "x"}), "row 0: message 2"),
        (demonstration(call_message(a=1, b=2), {"role": "user", "content": "more"}), "row 0: message 2"),
        (demonstration(*[{"role": "assistant", "content": "3"}] * 2), "row 0: message 2"),
    ],
)
def test_a_conversation_that_is_no_rollout_is_refused_by_row(messages, message):
    with pytest.raises(ValueError, match=message):
        masked(messages, tiny_tokenizer())


def test_the_rows_go_straight_into_trls_sft_trainer(tmp_path):
    tokenizer = tiny_tokenizer()
    messages = [demonstration(call_message(a=1, b=2), result("3"), {"role": "assistant", "content": "3"})] * 4
    dataset = Dataset.from_dict(mask_observations({"messages": messages}, tokenizer=tokenizer, tools=[add]))
    config = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        logging_steps=1,
    )
    trainer = SFTTrainer(tiny_model(tokenizer), config, train_dataset=dataset, processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    assert (batch["labels"] == -100).any() and (batch["labels"] != -100).any()
    trainer.train()


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (None, "messages is NoneType"),
        ("How warm is Oslo?", "messages is str"),
        (["How warm is Oslo?"], "message 0 is str"),
        ([{"content": "How warm is Oslo?"}], "message 0 has the role None"),
        ([{"role": "human", "content": "How warm is Oslo?"}], "message 0 has the role 'human'"),
        ([{"role": "tool", "content": "7"}], "message 0 has the role 'tool'"),
        ([{"role": "user", "content": None}], "message 0 (user) has the content None"),
        ([{"role": "user"}, {"role": "assistant", "content": ""}], "message 0 (user) has the content"),
    ],
)
def test_a_row_that_is_no_conversation_is_dropped_with_its_reason_and_ends_nothing(messages, found):
    """Beside a sound row, which is kept."""
    sound = [user("6 * 7?")[0], {"role": "assistant", "content": "42"}]
    if isinstance(messages, list) and messages and isinstance(messages[0], dict):
        messages = [*messages, {"role": "assistant", "content": "42"}]
    rows = mask_observations({"messages": [messages, sound]}, tokenizer=tiny_tokenizer(), keep_problems=True)
    assert rows["problem"][0].startswith(f"not_a_rollout: {found}") and rows["problem"][1] == ""
    assert rows["input_ids"][0] == [] and len(rows["input_ids"][1]) > 0
    with pytest.raises(ValueError, match="row 0: message"):
        mask_observations({"messages": [messages, sound]}, tokenizer=tiny_tokenizer())
