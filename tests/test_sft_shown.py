"""What a message says is in its row, or the row is dropped: a template may leave out roles, blocks, calls and ends."""

import pytest

from envmask_trl import ParsedTurn, PartWeights, ScriptedSampler, ToolCall, mask_observations, run_rollouts

from .real_tokenizers import chat_template, load
from .tiny import add, tiny_tokenizer, user

QUESTION = user("a")[0]  # a letter that stands in every prompt
ANSWER = {"role": "assistant", "content": "42"}
RESULT = {"role": "tool", "content": "3"}


def blocks(*texts):
    return [{"type": "text", "text": text} for text in texts]


def calling(*names, content=""):
    calls = [{"type": "function", "function": {"name": name, "arguments": {"a": 1, "b": 2}}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def masked(messages, tokenizer=None, **options):
    tokenizer = tokenizer or tiny_tokenizer()
    return mask_observations({"messages": [messages]}, tokenizer=tokenizer, keep_problems=True, **options)


def learned(rows):
    return tiny_tokenizer().decode([label for label in rows["labels"][0] if label != -100])


def templated(name, template=None):
    tokenizer = load(name)
    tokenizer.chat_template = chat_template(template or name)
    return tokenizer


def test_blocks_of_text_are_the_text_in_every_role_under_a_template_that_prints_texts_only():
    row = [("system", "Be brief."), ("user", "6 * 7?"), ("assistant", "42"), ("user", "And 2?"), ("assistant", "2")]
    as_texts, as_blocks = (
        masked([{"role": role, "content": form(text)} for role, text in row], load("qwen3"))
        for form in (str, lambda text: blocks(text[:3], text[3:]))
    )
    assert as_texts == as_blocks and as_texts["problem"] == [""]


@pytest.mark.parametrize("block", [{"type": "image"}, {"type": "image", "text": "alt"}, "text", 7], ids=str)
def test_a_block_that_is_no_text_drops_its_row_in_every_role(block):
    for role in ("system", "user", "assistant"):
        out = masked([{"role": role, "content": [block]}, *([] if role == "assistant" else [QUESTION, ANSWER])])
        assert f"{role}'s content holds " in out["problem"][0] and "expected a text" in out["problem"][0]


@pytest.mark.parametrize(
    ("messages", "template", "left_out"),
    [
        ([{"role": "developer", "content": "user"}, QUESTION, ANSWER], "qwen3", "the content of message 0 (developer)"),
        ([QUESTION, {**ANSWER, "content": "so<think>b</think>3"}], "qwen3", "the content of message 1 (assistant)"),
        ([QUESTION, {**ANSWER, "reasoning_content": "so"}], "qwen2.5", "the `reasoning_content` of message 1 (assist"),
        ([QUESTION, calling("add", content="I add."), RESULT, ANSWER], "llama3.1", "the content of message 1 (assist"),
    ],
)
def test_a_row_lacks_nothing_that_a_message_says(messages, template, left_out):
    out = masked(messages, templated(template), tools=[add])
    assert out["problem"][0].startswith(f"template: the chat template leaves out {left_out}")


@pytest.mark.parametrize("shown", ["[]", "(message.tool_calls or [])[:1]"])
def test_a_call_that_the_template_leaves_out_drops_the_row_though_the_name_stands_in_its_content(shown):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("message.tool_calls or []", shown)
    out = masked([QUESTION, calling("add", "add", content="add"), RESULT, RESULT, ANSWER], tokenizer, tools=[add])
    assert out["problem"][0].startswith("template: the chat template leaves out the call of 'add' of message 1 (")


@pytest.mark.parametrize("name", ["qwen3", "qwen3_training", "qwen2.5", "llama3.1"])
def test_what_a_template_trims_or_escapes_is_shown(name):
    """And what it moves: Qwen3 writes a thought apart from the answer."""
    system = {"role": "system", "content": ' Say "hi"\\ <b>&é \n'}
    thought = {"role": "assistant", "content": "<think>\nso\n</think>\n\n  42 \n"}
    row = [system, QUESTION, calling('a"dd'), {"role": "tool", "content": "3 "}, thought, QUESTION, thought]
    out = masked(row, templated(name.removesuffix("_training"), name), tools=[add])
    assert out["problem"] == [""]


MISMATCHED = "{{ '<|im_end|>\n' }}"


@pytest.mark.parametrize(
    "end", [MISMATCHED, "{% if message.role == 'user' or not loop.last %}" + MISMATCHED + "{% endif %}", "{{ '\n' }}"]
)
def test_a_turn_without_a_stop_token_drops_the_row_and_names_the_remedy(end):
    """A base model's eos under a chat template: the new line behind the closer would be learned in every turn."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    tools, loop, messages = tokenizer.chat_template.partition("{%- for message in messages -%}")
    tokenizer.chat_template = tools + loop + messages.replace(MISMATCHED, end)
    for messages in ([QUESTION, ANSWER], [QUESTION, calling("add"), RESULT, ANSWER]):
        problem = masked(messages, tokenizer, tools=[add])["problem"][0]
        assert "the chat template writes no stop token ('<|endoftext|>')" in problem
        assert "pass the ids that end the model's turns as stop_token_ids" in problem
        if "<|im_end|>" in end:
            stops = {tokenizer.convert_tokens_to_ids("<|im_end|>")}
            assert masked(messages, tokenizer, tools=[add], stop_token_ids=stops)["problem"] == [""]


def test_a_template_that_writes_nothing_behind_a_turn_has_nothing_to_learn_there():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '\nUser: ' + m.content if m.role == 'user' else '\nModel:' + m.content }}"
        "{% endfor %}{{ '\nModel:' if add_generation_prompt }}"
    )
    assert learned(masked([QUESTION, ANSWER, QUESTION, ANSWER], tokenizer)) == "4242"


def test_a_turn_that_ends_where_the_next_message_opens_has_the_ids_of_the_rollout():
    """As GLM's do: behind a call <|observation|> is the stop token, behind an answer <|user|>."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|model|>", "<|observation|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ {'user': '<|user|>', 'assistant': '<|model|>', 'tool': '<|observation|>'}[m.role] }}"
        "{{ '\n' + m.content }}{% for call in m.tool_calls or [] %}{{ '<tool_call>\n' }}"
        "{{ (call.function | tojson) + '\n</tool_call>' }}{% endfor %}{% endfor %}"
        "{{ '<|model|>\n' if add_generation_prompt }}"
    )
    stops = {tokenizer.convert_tokens_to_ids(token) for token in ("<|user|>", "<|observation|>")}
    messages = [QUESTION, calling("add"), RESULT, ANSWER]
    out = masked(messages, tokenizer, tools=[add], stop_token_ids=stops)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|observation|>'
    assert tokenizer.decode(out["input_ids"][0]) == f"<|user|>\na<|model|>\n{call}\n3<|model|>\n42<|user|>"
    assert tokenizer.decode([label for label in out["labels"][0] if label != -100]) == f"{call}42<|user|>"
    turns = [tokenizer(turn, add_special_tokens=False)["input_ids"] for turn in (call, "42<|user|>")]
    parsed = iter([ParsedTurn("calls", calling("add"), calls=(ToolCall("", "add", {"a": 1, "b": 2}),))])
    (row,) = run_rollouts(
        [[QUESTION]],
        tokenizer=tokenizer,
        sampler=ScriptedSampler([turns]),
        tools=[add],
        stop_token_ids=stops,
        parser=lambda _: next(parsed, ParsedTurn("answer", ANSWER)),
    )
    assert out["input_ids"][0] == [*row.prompt_ids, *row.completion_ids]


@pytest.mark.parametrize(
    "flag", [{"weight": 0}, {"train": False}, {"loss": 0.0}, {"weight": 1, "loss": False}], ids=str
)
def test_a_turn_that_its_message_says_not_to_learn_stays_visible(flag):
    bad, good = {"role": "assistant", "content": "bad"}, {"role": "assistant", "content": "good", "weight": 1}
    row, plain = (masked([QUESTION, {**bad, **each}, QUESTION, good]) for each in (flag, {}))
    assert learned(row) == "good<|im_end|>" and learned(plain) == "bad<|im_end|>good<|im_end|>"
    assert row["input_ids"] == plain["input_ids"]
    called = masked([QUESTION, {**calling("add"), **flag}, RESULT, good], tools=[add], weights=PartWeights(thought=0.5))
    assert learned(called) == "good<|im_end|>"
    assert masked([QUESTION, {**bad, **flag}])["problem"][0].startswith("nothing_trained")


@pytest.mark.parametrize("value", ["0", "false", 0.5, 2, [0]], ids=str)
def test_a_flag_that_is_neither_0_nor_1_drops_its_row(value):
    problem = masked([QUESTION, {**ANSWER, "weight": value}])["problem"][0]
    assert problem == f"not_a_rollout: message 1 has the weight {value!r}, expected 0 or 1; leave it out to learn it"


@pytest.mark.parametrize("value", [0.73, 2, "no"])
def test_a_number_that_was_logged_beside_a_message_is_no_flag(value):
    assert learned(masked([QUESTION, {**ANSWER, "loss": value}])) == learned(masked([QUESTION, ANSWER]))


def test_a_thought_that_the_content_holds_too_is_not_missed():
    """Under a template that does not know the field."""
    twice = {"role": "assistant", "content": "<think>\nhm\n</think>yo", "reasoning_content": "hm"}
    assert masked([QUESTION, twice])["problem"] == [""]
    assert "leaves out the `reasoning_content`" in masked([QUESTION, {**twice, "content": "yo"}])["problem"][0]
