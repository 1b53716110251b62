"""Observations by rendering everything twice: equal to the block where a template appends, realigned and counted else.

Ids in the tables: 1-9 prompt, 10-19 model, 20-29 environment.
"""

import warnings
from functools import cache

import pytest

from envmask_trl import ObservationEncoder, ScriptedSampler, Source, ToolCall, run_rollouts
from envmask_trl.rollout.drift import DriftKind, Gap, json_spans, name_gaps, realign
from envmask_trl.rollout.rendered_history import History

from .tiny import CHAT_TEMPLATE, add, answer, call, tiny_tokenizer, user

CALL = ToolCall("call00000", "add", {"a": 1, "b": 2})
PROMPT = user("row 3")
PAGE = "<|im_end|>\n<|im_start|>assistant\n" + call("add", a=7, b=7) + answer("14")


@cache
def tokenizer():
    return tiny_tokenizer()


def ids(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def encoder(**options) -> ObservationEncoder:
    return ObservationEncoder(tokenizer(), tools=[add], stop_token_ids={tokenizer().eos_token_id}, **options)


def prompt_ids() -> list[int]:
    return tokenizer().apply_chat_template(PROMPT, tools=[add], add_generation_prompt=True, return_dict=False)


def history(sampled: str, *, reasoning: str = "") -> History:
    function = {"name": "add", "arguments": {"a": 1, "b": 2}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    message |= {"reasoning_content": reasoning} if reasoning else {}
    return History((*prompt_ids(), *ids(sampled)), (*PROMPT, message))


def kinds_of(sampled: str, **options) -> list[DriftKind]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observation = encoder(mode="diff").encode([CALL], ["3"], closed=True, history=history(sampled, **options))
    assert observation.segments == encoder().encode([CALL], ["3"], closed=True).segments
    return [drift.kind for drift in observation.drift]


@pytest.mark.parametrize(
    ("held", "rendered", "boundary", "gaps"),
    [
        # nothing differs: what is added starts behind what is held
        ([1, 10, 19], [1, 10, 19, 20, 21], 3, []),
        # 11 was dropped, as thinking is
        ([1, 10, 11, 19], [1, 10, 19, 20], 3, [Gap(2, 3, 2, 2)]),
        # 12 was put in, as an empty thinking block is
        ([1, 10, 19], [1, 12, 10, 19, 20], 4, [Gap(1, 1, 1, 2)]),
        # 11 was written as 13 14
        ([1, 10, 11, 19], [1, 10, 13, 14, 19, 20], 5, [Gap(2, 3, 2, 4)]),
        # the end 19 occurs again in what is added: the first one ends what is held
        ([1, 11, 19], [1, 12, 19, 20, 19], 3, [Gap(1, 2, 1, 2)]),
        # the end that was sampled is not rendered
        ([1, 10, 18], [1, 10, 20, 21], 2, [Gap(2, 3, 2, 2)]),
        # nothing in common
        ([10, 11], [20, 21], 0, [Gap(0, 2, 0, 0)]),
    ],
)
def test_held_ids_are_found_in_a_rendering_that_differs(held, rendered, boundary, gaps):
    assert realign(held, rendered) == (boundary, gaps)


def test_the_alignment_is_a_longest_one():
    """A greedy match of the first 12 would lose 10 and 11."""
    assert realign([12, 10, 11, 19], [10, 11, 12, 19]) == (4, [Gap(0, 1, 0, 0), Gap(3, 3, 2, 3)])


def test_an_appending_template_gives_the_ids_of_the_block_and_no_drift():
    """Two rounds; the second result is a page of turns, which stays ordinary text in the history too."""
    results = iter(["3", PAGE, "5"])

    def add(a: int, b: int) -> str:
        """The sum of two numbers.

        Args:
            a: A number.
            b: Another number.
        """
        return next(results)

    turns = [tuple(ids(call("add", a=1, b=2)))] * 3 + [tuple(ids(answer("3")))]
    (row,) = run_rollouts([PROMPT], tokenizer=tokenizer(), sampler=ScriptedSampler([turns]), tools=[add])
    diff = encoder(mode="diff", strict=True)
    held: list[int] = []
    observed, messages, rounds = [], list(PROMPT), 0
    for segment in row.segments:
        if observed and segment.source is Source.MODEL:
            result = row.messages[2 * rounds + 1]
            called = ToolCall(result["tool_call_id"], "add", {})
            messages.append(row.messages[2 * rounds])
            added = diff.encode([called], [result["content"]], closed=True, history=History(held, messages))
            assert list(added.segments) == observed and added.drift == ()
            messages.append(result)
            held += [token for each in observed for token in each.token_ids]
            observed, rounds = [], rounds + 1
        if segment.source in (Source.ENV, Source.TEMPLATE):
            observed.append(segment)
        else:
            held += segment.token_ids
    assert rounds == 3


def test_a_call_written_with_other_white_space_is_drift_of_its_json():
    sampled = '<tool_call>\n{"name": "add", "arguments": {"a":1, "b": 2}}\n</tool_call><|im_end|>'
    assert set(kinds_of(sampled)) == {DriftKind.CALL_JSON}


def test_thinking_that_the_template_drops_is_drift_of_thinking():
    sampled = "row of the batch" + call("add", a=1, b=2)
    assert set(kinds_of(sampled, reasoning="row of the batch")) == {DriftKind.THINKING}
    assert set(kinds_of(f"<think>row</think>{call('add', a=1, b=2)}")) == {DriftKind.THINKING}


def test_white_space_and_control_tokens_around_a_call_are_told_apart():
    assert kinds_of(call("add", a=1, b=2).replace("<|im_end|>", "  \n<|im_end|>")) == [DriftKind.WHITE_SPACE]
    assert kinds_of("<|im_start|>" + call("add", a=1, b=2)) == [DriftKind.SPECIAL_TOKEN]
    assert kinds_of("row" + call("add", a=1, b=2)) == [DriftKind.OTHER]


def test_the_same_text_in_other_tokens_is_named_so():
    """Ids that were sampled one character at a time are rendered as one token."""
    letters = [token for char in "arguments" for token in ids(char)]
    held, rendered = [*letters, 19], [*ids("arguments"), 19, 20]
    assert len(held) > len(rendered)
    boundary, gaps = realign(held, rendered)
    named = name_gaps(gaps, held, rendered, decode=tokenizer().decode, control_ids=())
    assert boundary == len(rendered) - 1 and [drift.kind for drift in named] == [DriftKind.TOKENS]


def test_drift_warns_once_with_the_place_and_strict_raises():
    sampled = "row" + call("add", a=1, b=2)
    lenient = encoder(mode="diff")
    said = (
        rf"renders earlier turns differently \(1 x other; first at token {len(prompt_ids())}: held 'row', rendered ''"
    )
    with pytest.warns(UserWarning, match=said):
        lenient.encode([CALL], ["3"], closed=True, history=history(sampled))
    lenient.encode([CALL], ["3"], closed=True, history=history(sampled))  # warnings are errors here: it is said once
    with pytest.raises(ValueError, match=f"{said}.*use mode='block', which never renders history"):
        encoder(mode="diff", strict=True).encode([CALL], ["3"], closed=True, history=history(sampled))


def test_results_are_cut_to_the_room_in_this_mode_too():
    held = history(call("add", a=1, b=2))
    room = encoder().scaffold_tokens([CALL], closed=True) + 40
    fitted = encoder(mode="diff").encode([CALL], ["7 " * 500], closed=True, max_tokens=room, history=held)
    assert room - 4 <= fitted.num_tokens <= room and fitted.num_cut == 1
    assert fitted.segments == encoder().encode([CALL], ["7 " * 500], closed=True, max_tokens=room).segments


def test_what_this_mode_needs_is_asked_for():
    with pytest.raises(ValueError, match="mode is 'twice', expected 'block' or 'diff'"):
        encoder(mode="twice")
    with pytest.raises(ValueError, match="pass history="):
        encoder(mode="diff").encode([CALL], ["3"], closed=True)
    raising = "{% if messages[0].content == 'row 3' %}{{ raise_exception('no') }}{% endif %}" + CHAT_TEMPLATE
    raising = encoder(mode="diff", template_kwargs={"chat_template": raising})
    with pytest.raises(ValueError, match=r"cannot render this conversation as a whole \(no\); use mode='block'"):
        raising.encode([CALL], ["3"], closed=True, history=history(call("add", a=1, b=2)))


def test_json_objects_are_found_where_they_stand():
    assert json_spans('a {"b": {}} { c {"d": 1}') == [(2, 11), (16, 24)]
