"""Rollouts printed: what a person reads in a terminal, a file, a pipe."""

import os
import pty
import re
import sys

import pytest
from IPython.lib.pretty import pretty

from envmask_trl import CallStatus, Segment, Source, StopReason, Trajectory, lint, view
from envmask_trl.inspect.audit_report import AuditReport
from envmask_trl.inspect.template_verdict import TemplateVerdict
from envmask_trl.sft.report import MaskReport
from tests.real_tokenizers import load
from tests.tiny import user
from tests.viewing import talk, trajectory


@pytest.fixture(scope="module")
def tokenizer():
    return load("qwen3")


def without_color(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_digit_stands_under_the_first_cell_of_every_token(tokenizer):
    text = view([trajectory(tokenizer)], tokenizer=tokenizer).terminal(color=False)
    assert text.split("\n\n")[1].splitlines()[1:] == [
        "What is 7*6?mul 7 6<|im_end|>⏎",
        "0   0  000001  11111         0",
        "<|im_start|>user⏎",
        "0           0   0",
        "42<|im_end|>⏎",
        "000         0",
        "It is 42.<|im_end|>",
        "1 1  11111",
    ]


def test_the_colors_change_nothing_but_the_color(tokenizer):
    shown_view = view([trajectory(tokenizer, observation="日本語 \x1b[2J\x07")], tokenizer=tokenizer)
    colored, plain = shown_view.terminal(color=True), shown_view.terminal(color=False)
    assert colored != plain == without_color(colored)
    assert "日本語 \\x1b[2J\\x07" in plain


def test_a_line_is_cut_before_the_token_that_would_not_fit(tokenizer):
    only = Trajectory(trajectory(tokenizer, asked="日本語 and 12").segments[:1], StopReason.LENGTH)
    text = view([only], tokenizer=tokenizer).terminal(color=False, width=8)
    assert text.split("\n\n")[1].splitlines()[1:] == ["日本語", "0   0", " and 12", "0   000"]


def test_calls_are_told_with_their_status_and_latency(tokenizer):
    shown_view = view([trajectory(tokenizer, **talk(status=CallStatus.TIMEOUT))], tokenizer=tokenizer)
    assert "\ncall mul: timeout, 0.25 s\n" in shown_view.terminal(color=False)


def test_of_a_long_prompt_the_end_is_shown_and_of_many_rollouts_the_first(tokenizer):
    shown_view = view([trajectory(tokenizer, asked="word " * 200)] * 25, tokenizer=tokenizer)
    assert "\n... 161 prompt tokens\n" in str(shown_view)  # 200 words and a space, the last 40 shown
    assert shown_view.terminal(whole_prompts=True, first=1).count("word") == 200
    assert str(shown_view).endswith("\n\n... 5 more rollouts")
    assert shown_view.terminal().count("\n\n#") == 25


def test_print_colors_for_a_terminal_that_wants_it_and_for_nothing_else(tokenizer, monkeypatch, tmp_path):
    shown_view = view([trajectory(tokenizer)], tokenizer=tokenizer)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    outer, inner = pty.openpty()
    with os.fdopen(outer, "rb"), os.fdopen(inner, "w") as terminal, (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert "\x1b" not in str(shown_view)
        monkeypatch.setattr(sys, "stdout", terminal)
        assert "\x1b[32mmul" in str(shown_view)
        monkeypatch.setenv("TERM", "dumb")
        assert "\x1b" not in str(shown_view)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in str(shown_view)
        assert "\x1b[32mmul" in shown_view.terminal(color=True)  # asked for


def test_a_prompt_alone_is_a_rollout_too(tokenizer):
    only = Trajectory((Segment(Source.PROMPT, (9707,)),), StopReason.PROMPT_TOO_LONG)
    assert "Rollouts: 1 rollout, 0 completion tokens, 0 trained\n" in str(view([only], tokenizer=tokenizer))


def test_a_report_at_the_end_of_a_cell_is_its_text_and_not_its_fields(tokenizer):
    shown_view = view([trajectory(tokenizer)], tokenizer=tokenizer)
    for report in (
        shown_view,
        lint([{"messages": user("a")}]),
        MaskReport(rows=1),
        AuditReport("audit of nothing", ()),
    ):
        assert pretty(report) == str(report)
    assert pretty(TemplateVerdict((), between="x")) == "TemplateVerdict: trains, append-only"
