"""Real tokenizers with real chat templates, also with one space changed: right boundaries, or a refusal that helps.

`python -m tests.template_pairs` prints the table.
"""

import warnings
from dataclasses import replace

import pytest
from trl.chat_template_utils import get_training_chat_template

from envmask_trl import ParsedTurn, RolloutLimits, ScriptedSampler, Source, StopReason, ToolCall, run_rollouts
from envmask_trl.inspect.template_verdict import FindingKind

from .known_pairs import PAIRS, REFUSED, Pair, load
from .template_pairs import (
    CALL,
    QUESTION,
    encoder_of,
    fake_conversation,
    holds,
    ids,
    opens_a_turn,
    verdict_of,
    weather,
)

ALL_PAIRS = [pytest.param(each, id=str(each)) for pair in PAIRS for each in (pair, replace(pair, changed=True))]
TRAINING = [pair for pair, expected in PAIRS.items() if expected != REFUSED]


def test_there_are_enough_pairs_and_most_of_them_train():
    assert len(PAIRS) >= 40 and len(TRAINING) >= 30


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_a_pair_trains_with_right_boundaries_or_is_refused_with_what_to_do(pair):
    """Boundaries of a rollout whose second result is a page of the template's own turns."""
    verdict = verdict_of(pair)
    assert verdict.summary == PAIRS[replace(pair, changed=False)], str(verdict)
    if verdict.trains:
        holds(pair, verdict)
        return
    for finding in verdict.findings:
        if finding.kind.refuses:
            assert any(remedy in finding.sentence for remedy in ("; use a ", "; set ", "; pass ")), finding.sentence


@pytest.mark.parametrize("pair", [p for p, expected in PAIRS.items() if expected == REFUSED], ids=str)
def test_a_page_of_turns_opens_none_even_where_the_pair_is_refused(pair):
    verdict = verdict_of(pair)
    if {FindingKind.RAISES, FindingKind.NO_RESULTS} & set(verdict.kinds):
        return  # no observation can be written at all
    page = fake_conversation(pair, has_tool_role=FindingKind.NO_TOOL_ROLE not in verdict.kinds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no tool role, said in the verdict
        observation = encoder_of(pair).encode([CALL], [page], closed=True)
    assert not opens_a_turn(pair, observation.segments)


def test_trl_refuses_what_only_one_space_keeps_from_a_template_it_knows():
    """If TRL learns to take it, the README's line about templates is out of date."""
    tokenizer = load("qwen3")
    known, changed = Pair("qwen3", "qwen3"), Pair("qwen3", "qwen3", changed=True)
    tokenizer.chat_template = known.chat_template
    assert get_training_chat_template(tokenizer)
    tokenizer.chat_template = changed.chat_template
    with pytest.raises(ValueError):
        get_training_chat_template(tokenizer)


def test_what_the_refusal_of_unreadable_calls_says_to_do_works():
    """DeepSeek V3: no known format reads its calls, so a parser is passed."""
    pair = Pair("deepseek-v3", "deepseekv3_training")
    tokenizer, verdict = load("deepseek-v3"), verdict_of(pair)
    assert [f.kind for f in verdict.findings if f.kind.refuses] == [FindingKind.UNREADABLE_CALLS]

    def parser(text: str) -> ParsedTurn:
        if "call" not in text:
            return ParsedTurn("answer", {"role": "assistant", "content": text})
        function = {"name": "weather", "arguments": {"city": "Oslo"}}
        message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        return ParsedTurn("calls", message, (ToolCall("", "weather", {"city": "Oslo"}),))

    turns = [(*ids(tokenizer, text), tokenizer.eos_token_id) for text in ("call", "7")]
    (row,) = run_rollouts(
        [[QUESTION]],
        tokenizer=tokenizer,
        sampler=ScriptedSampler([turns]),
        tools=[weather],
        parser=parser,
        limits=RolloutLimits(),
        template_kwargs={"chat_template": pair.chat_template},
    )
    assert row.stop_reason is StopReason.ANSWERED
    assert [s.token_ids for s in row.segments if s.source is Source.MODEL] == turns
    foreign = tokenizer.decode([t for t, own in zip(row.completion_ids, row.env_mask, strict=True) if not own])
    assert foreign == verdict.between.replace("...", weather("Oslo"))
