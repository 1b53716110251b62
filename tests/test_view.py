"""What the page and the terminal show of a rollout, read back the way a browser and a person would read it."""

import re
from html.parser import HTMLParser

import pytest

from envmask_trl import Segment, Source, StopReason, Trajectory, load_rollouts, save_rollouts, view
from envmask_trl.inspect.records import rollout_columns
from envmask_trl.inspect.token_text import shown
from tests.real_tokenizers import load

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\' " & <!-- </span>'


@pytest.fixture(scope="module")
def tokenizer():
    return load("qwen3")


def trajectory(tokenizer, *, prompt="What is 7*6?", observation="42", turns=("mul 7 6", "It is 42.")):
    """prompt, a model's turn, template, observation, template, a model's turn."""

    def ids(text):
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    first, last = (ids(f"{turn}<|im_end|>") for turn in turns)
    return Trajectory(
        segments=(
            Segment(Source.PROMPT, ids(prompt)),
            Segment(Source.MODEL, first, tuple(-0.5 - position for position, _ in enumerate(first))),
            Segment(Source.TEMPLATE, ids("\n<|im_start|>user\n")),
            Segment(Source.ENV, ids(observation)),
            Segment(Source.TEMPLATE, ids("<|im_end|>\n")),
            Segment(Source.MODEL, last, tuple(-0.25 for _ in last)),
        ),
        stop_reason=StopReason.ANSWERED,
    )


class Page(HTMLParser):
    """A page as a browser reads it: its elements, and the tokens as (source, text, digit, title)."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.tokens, self.open, self.words = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "span":
            self.tokens.append([dict(attrs)["class"], "", "", dict(attrs)["title"]])
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if "span" in self.open:
            self.tokens[-1][2 if self.open[-1] == "b" else 1] += data


def expected_tokens(tokenizer, *trajectories):
    """(source, text, digit) of every token, prompt first."""
    return [
        (segment.source, shown(tokenizer.decode([token])), "1" if segment.source is Source.MODEL else "0")
        for each in trajectories
        for segment in each.segments
        for token in segment.token_ids
    ]


def without_color(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_page_shows_every_token_once_in_order_with_its_source_and_its_mask_digit(tokenizer):
    both = [trajectory(tokenizer), trajectory(tokenizer, observation="7\t6\nsix", turns=("mul", "I give up."))]
    page = Page(view(both, tokenizer=tokenizer).html)
    assert [(source, text, digit) for source, text, digit, _ in page.tokens] == expected_tokens(tokenizer, *both)
    assert page.open == []


def test_hovering_over_a_token_tells_its_id_text_source_turn_log_prob_and_whether_it_is_trained(tokenizer):
    page = Page(view([trajectory(tokenizer, prompt="Hello")], tokenizer=tokenizer).html)
    #     prompt  Hello    model  mul  7  6
    assert page.tokens[0][3] == "'Hello'\nid 9707\nprompt\nno log-prob\nmask 0: not trained"
    assert page.tokens[1][3].startswith("'mul'\n")
    assert page.tokens[1][3].endswith("\nmodel, turn 0\nlog-prob -0.5000\nmask 1: trained")
    assert page.tokens[-1][3] == "'<|im_end|>'\nid 151645\nmodel, turn 1\nlog-prob -0.2500\nmask 1: trained"


def test_text_that_is_markup_is_shown_and_never_becomes_an_element(tokenizer):
    hostile = trajectory(tokenizer, prompt=HOSTILE, observation=HOSTILE, turns=(HOSTILE, HOSTILE))
    shown_view = view([hostile], tokenizer=tokenizer, rewards=[{HOSTILE: 1.0}], title=HOSTILE)
    page = Page(shown_view.html)
    assert [(source, text, digit) for source, text, digit, _ in page.tokens] == expected_tokens(tokenizer, hostile)
    assert not {tag for tag, _ in page.elements} & {"script", "img", "iframe", "link", "object"}
    assert not {name for _, attributes in page.elements for name in attributes if name.startswith("on")}
    assert page.words.count(HOSTILE) == 2  # the <title> and the heading
    (frame,) = Page(shown_view._repr_html_()).elements
    assert frame[0] == "iframe" and frame[1]["srcdoc"] == shown_view.html


def test_the_saved_page_is_one_file_that_loads_nothing(tokenizer, tmp_path):
    path = view([trajectory(tokenizer)], tokenizer=tokenizer).save(tmp_path / "new" / "rollouts.html")
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|\bsrc\s*=|\bhref\s*=|url\(|@import", html)
    assert "default-src 'none'" in html
    assert [entry.name for entry in path.parent.iterdir()] == ["rollouts.html"]


def test_a_long_prompt_is_folded_and_a_short_one_is_not(tokenizer):
    short, long = trajectory(tokenizer), trajectory(tokenizer, prompt="word " * 200)
    shown_view = view([short, long], tokenizer=tokenizer)
    folds = [attributes for tag, attributes in Page(shown_view.html).elements if tag == "details"]
    assert folds == [{"open": None}, {}]
    assert "\n... 161 prompt tokens\n" in shown_view.terminal(color=False)  # 200 words and a space, the last 40 shown
    assert shown_view.terminal(color=False, whole_prompts=True).count("word") == 200


def test_saved_rollouts_give_the_page_that_the_trajectories_give(tokenizer, tmp_path):
    both = [trajectory(tokenizer), trajectory(tokenizer, observation="error")]
    scores = {"rewards": [{"correct": 1.0}, {"correct": float("nan")}], "advantages": [0.70710678, -0.5]}
    page = view(both, tokenizer=tokenizer, **scores).html
    path = save_rollouts(rollout_columns(both, **scores), tmp_path / "step-000001.parquet")
    assert view(path, tokenizer=tokenizer).html == page
    assert view(str(tmp_path), tokenizer=tokenizer).html == page
    assert view(load_rollouts(path), tokenizer=tokenizer).html == page


def test_the_header_tells_step_stop_reason_rewards_and_advantage(tokenizer):
    columns = rollout_columns([trajectory(tokenizer)]) | {"step": [12], "stop_reason": ["max_turns"]}
    rows = [{name: values[0] for name, values in columns.items()}]
    shown_view = view(rows, tokenizer=tokenizer, rewards=[{"correct": 1.0, "brief": None}], advantages=[0.70710678])
    expected = "#0  step 12  stop max_turns (unfinished)  correct 1  brief none  advantage +0.7071  ("
    assert expected in without_color(str(shown_view))
    words = "".join(Page(shown_view.html).words)
    assert "#0step 12stop max_turns (unfinished)correct 1brief noneadvantage +0.7071" in words


def test_the_terminal_has_a_digit_under_the_first_cell_of_every_token(tokenizer):
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


def test_the_terminal_colors_change_nothing_but_the_color(tokenizer):
    shown_view = view([trajectory(tokenizer, observation="日本語 \x1b[2J\x07")], tokenizer=tokenizer)
    assert str(shown_view) != shown_view.terminal(color=False) == without_color(str(shown_view))
    assert "日本語 \\x1b[2J\\x07" in shown_view.terminal(color=False)


def test_the_terminal_wraps_before_the_token_that_would_not_fit(tokenizer):
    only = Trajectory(
        segments=trajectory(tokenizer, prompt="日本語 and 12").segments[:1], stop_reason=StopReason.LENGTH
    )
    text = view([only], tokenizer=tokenizer).terminal(color=False, width=8)
    assert text.split("\n\n")[1].splitlines()[1:] == ["日本語", "0   0", " and 12", "0   000"]


def test_a_mask_that_contradicts_the_source_is_shown_as_it_is(tokenizer):
    (row,) = ({name: values[0] for name, values in rollout_columns([trajectory(tokenizer)]).items()},)
    row["env_mask"] = [1] * len(row["env_mask"])
    tokens = Page(view([row], tokenizer=tokenizer).html).tokens
    assert {(source, digit) for source, _, digit, _ in tokens} == {
        ("prompt", "0"), ("model", "1"), ("env", "1"), ("template", "1")
    }  # fmt: skip


def test_control_characters_are_visible_and_a_line_break_breaks_the_line(tokenizer):
    html = view([trajectory(tokenizer, observation="a\tb\r\u202e\n")], tokenizer=tokenizer).html
    observation = "".join(text for source, text, _, _ in Page(html).tokens if source == "env")
    assert "a→b" in observation and "\\r" in observation and "⏎" in observation
    assert not re.search("[\t\r\u202e]", html)
    assert html.count("⏎<b>") == html.count("</span><br>")


def test_a_token_that_is_part_of_a_character_is_shown_as_its_bytes(tokenizer):
    page = Page(view([trajectory(tokenizer, observation="a 🦊")], tokenizer=tokenizer).html)
    observation = [text for source, text, _, _ in page.tokens if source == "env"]
    assert observation == ["a", " ⟨f0 9f⟩", "⟨a6⟩", "⟨8a⟩"]  # the four bytes of the fox


def test_an_id_without_a_text_is_shown_as_its_id(tokenizer):
    odd = Trajectory(segments=(Segment(Source.PROMPT, (151900,)),), stop_reason=StopReason.PROMPT_TOO_LONG)
    assert Page(view([odd], tokenizer=tokenizer).html).tokens[0][1] == "⟨id 151900⟩"


def test_columns_of_different_lengths_are_refused_with_the_row(tokenizer):
    rows = [{name: values[0] for name, values in rollout_columns([trajectory(tokenizer)]).items()} for _ in range(2)]
    rows[1]["env_mask"] = rows[1]["env_mask"][:-1]
    with pytest.raises(ValueError, match=r"row 1: env_mask has \d+ values but completion_ids has \d+"):
        view(rows, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="row 0 has no sources"):
        view([{name: value for name, value in rows[0].items() if name != "sources"}], tokenizer=tokenizer)
    with pytest.raises(ValueError, match="advantages has 1 values for 2 rollouts"):
        view([trajectory(tokenizer)] * 2, tokenizer=tokenizer, advantages=[0.5])
