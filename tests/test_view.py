"""What a page and a terminal show of rollouts: their data read back, their text as a person would read it."""

import re
from html.parser import HTMLParser

import pyarrow
import pytest
from pyarrow import parquet

from envmask_trl import CallStatus, Segment, Source, StopReason, Trajectory, load_rollouts, save_rollouts, view
from envmask_trl.inspect.records import rollout_columns
from tests.real_tokenizers import load
from tests.viewing import HOSTILE, UNPRINTABLE, PageData, expected_tokens, talk, trajectory


@pytest.fixture(scope="module")
def tokenizer():
    return load("qwen3")


class Elements(HTMLParser):
    """The elements of a page, as (tag, attributes)."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def row_of(trajectory):
    return {name: values[0] for name, values in rollout_columns([trajectory]).items()} | {
        "prompt": None,
        "messages": [],
        "tool_results": [],
    }


def test_the_page_has_every_token_once_in_order_with_its_source_and_its_mask_digit(tokenizer):
    both = [trajectory(tokenizer), trajectory(tokenizer, observation="7\t6\nsix", turns=("mul", "I give up."))]
    data = PageData(view(both, tokenizer=tokenizer).html)
    assert data.tokens(0) == expected_tokens(tokenizer, both[0])
    assert data.tokens(1) == expected_tokens(tokenizer, both[1])


def test_text_that_is_markup_never_stands_in_the_page(tokenizer):
    said = talk(call=HOSTILE, arguments=HOSTILE, result=HOSTILE, answer=HOSTILE)
    hostile = trajectory(tokenizer, asked=HOSTILE, observation=HOSTILE, turns=(HOSTILE, HOSTILE), **said)
    shown_view = view([hostile], tokenizer=tokenizer, rewards=[{HOSTILE: 1.0}], title=HOSTILE)
    harmless = view([trajectory(tokenizer)], tokenizer=tokenizer)
    assert Elements(shown_view.html).found == Elements(harmless.html).found
    assert PageData(shown_view.html).tokens() == expected_tokens(tokenizer, hostile)
    (frame,) = Elements(shown_view._repr_html_()).found
    assert frame[0] == "iframe" and frame[1]["srcdoc"] == shown_view.html
    assert frame[1]["sandbox"] == "allow-scripts"  # and not allow-same-origin: the notebook's cookies stay its own


def test_characters_that_do_not_print_are_visible_and_the_page_can_be_written(tokenizer, tmp_path):
    said = talk(call=UNPRINTABLE, arguments=UNPRINTABLE, result=UNPRINTABLE, answer=UNPRINTABLE)
    odd = trajectory(tokenizer, observation=UNPRINTABLE[:-1], **said)
    shown_view = view([odd], tokenizer=tokenizer, rewards=[{UNPRINTABLE: 1.0}], title=UNPRINTABLE)
    html = shown_view.save(tmp_path / "page.html").read_text(encoding="utf-8")
    visible = "a→b\\r\\u202e\\x1b[2J\\x00\\u2028\\ud800"
    data = PageData(html)
    assert f"<title>{visible}</title>" in html and list(data.heads[0]["rewards"]) == [visible]
    assert [turn["text"] for turn in data.bodies[0]["talk"]] == ["What is 7*6?", "", visible, visible]
    assert data.bodies[0]["talk"][1]["calls"] == [[visible, visible]]
    assert shown_view.terminal(color=False).isprintable() is False  # its own line breaks, and nothing else:
    assert all(line.isprintable() for line in shown_view.terminal(color=False).split("\n"))


def test_the_saved_page_is_one_file_that_loads_nothing(tokenizer, tmp_path):
    path = view([trajectory(tokenizer)], tokenizer=tokenizer).save(tmp_path / "new" / "rollouts.html")
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|\bsrc\s*=|\bhref\s*=|url\(|@import|fetch\(", html)
    assert "default-src 'none'; script-src 'sha256-" in html and "unsafe-inline" not in html
    assert [entry.name for entry in path.parent.iterdir()] == ["rollouts.html"]


def test_saved_rollouts_give_the_page_that_the_trajectories_give(tokenizer, tmp_path):
    both = [trajectory(tokenizer, **talk()), trajectory(tokenizer, observation="error")]
    scores = {"rewards": [{"correct": 1.0}, {"correct": float("nan")}], "advantages": [0.70710678, -0.5]}
    page = view(both, tokenizer=tokenizer, **scores).html
    path = save_rollouts(rollout_columns(both, **scores), tmp_path / "step-000001.parquet")
    assert view(path, tokenizer=tokenizer).html == page
    assert view(str(tmp_path), tokenizer=tokenizer).html == page
    assert view(load_rollouts(path), tokenizer=tokenizer).html == page


def test_a_result_stands_at_its_own_call_and_one_that_the_model_never_saw_is_marked(tokenizer):
    said = talk()
    call, answer, last = said["messages"]
    first = said["tool_results"][0]
    late = type(first)("call01000", "search", "too late", CallStatus.TIMEOUT, 3.0)
    said |= {"messages": (call, answer, last), "tool_results": (late, first)}  # out of order: the id decides
    turns = PageData(view([trajectory(tokenizer, **said)], tokenizer=tokenizer).html).bodies[0]["talk"]
    assert [(turn["role"], turn.get("turn"), turn.get("result")) for turn in turns] == [
        ("user", None, None), ("assistant", 0, None), ("tool", None, ["mul", "ok", 0.25]), ("assistant", 1, None),
        ("tool", None, ["search", "timeout", 3.0]),
    ]  # fmt: skip
    assert [turn.get("unseen", False) for turn in turns] == [False, False, False, False, True]


def test_a_row_without_messages_is_read_by_its_runs_of_tokens(tokenizer):
    turns = PageData(view([trajectory(tokenizer)], tokenizer=tokenizer).html).bodies[0]["talk"]
    assert [(turn["role"], turn["text"]) for turn in turns] == [
        ("prompt", "What is 7*6?"), ("model", "mul 7 6<|im_end|>"), ("template", "\n<|im_start|>user\n"), ("env", "42"),
        ("template", "<|im_end|>\n"), ("model", "It is 42.<|im_end|>"),
    ]  # fmt: skip


def test_numbers_that_json_does_not_have_are_shown_and_not_lost(tokenizer):
    row = row_of(trajectory(tokenizer))
    row["logprobs"] = [float("nan"), float("-inf"), *row["logprobs"][2:]]
    html = view([row], tokenizer=tokenizer, rewards=[{"judge": float("nan"), "none": None}], advantages=[1 / 3]).html
    data = PageData(html)
    assert data.bodies[0]["logprobs"][:3] == ["nan", "-inf", -2.5]
    assert len(data.bodies[0]["logprobs"]) == sum(row["env_mask"])  # foreign tokens have none
    assert data.heads[0]["rewards"] == {"judge": "nan", "none": None} and data.heads[0]["advantage"] == 0.3333


def test_an_advantage_per_token_is_kept_per_token(tokenizer):
    only = trajectory(tokenizer)
    credit = [0.5 * mask for mask in only.env_mask[:-1]] + [2.0]
    data = PageData(view([only], tokenizer=tokenizer, advantages=[credit]).html)
    assert data.bodies[0]["advantages"] == credit and ["advantage", "+0.5 to +2"] in data.heads[0]["facts"]
    with pytest.raises(ValueError, match=r"row 0: advantage has \d+ values but completion_ids has \d+"):
        view([only], tokenizer=tokenizer, advantages=[credit[:-1]])


def test_the_header_tells_step_stop_reason_rewards_and_advantage(tokenizer):
    row = row_of(trajectory(tokenizer)) | {"step": 12, "stop_reason": "max_turns"}
    shown_view = view([row], tokenizer=tokenizer, rewards=[{"correct": 1.0, "brief": None}], advantages=[0.70710678])
    expected = "#0  step 12  stop max_turns (unfinished)  correct 1  brief none  advantage +0.7071  ("
    assert expected in str(shown_view)
    assert PageData(shown_view.html).heads[0]["facts"] == [
        ["step", "12"], ["stop", "max_turns (unfinished)"], ["correct", "1"], ["brief", "none"],
        ["advantage", "+0.7071"],
    ]  # fmt: skip


def test_a_mask_that_contradicts_the_source_is_shown_as_it_is(tokenizer):
    row = row_of(trajectory(tokenizer))
    row["env_mask"] = [1] * len(row["env_mask"])
    tokens = PageData(view([row], tokenizer=tokenizer).html).tokens()
    assert {(source, digit) for source, _, digit in tokens} == {
        ("prompt", 0), ("model", 1), ("env", 1), ("template", 1)
    }  # fmt: skip


def test_a_row_that_a_policy_left_out_of_the_loss_shows_that_nothing_of_it_is_trained(tokenizer):
    row = row_of(trajectory(tokenizer))
    row["loss_mask"] = [0] * len(row["env_mask"])
    data = PageData(view([row], tokenizer=tokenizer).html)
    assert {digit for _, _, digit in data.tokens()} == {0} and data.heads[0]["tokens"][2] == 0


def test_a_token_that_is_part_of_a_character_is_shown_as_its_bytes(tokenizer):
    tokens = PageData(view([trajectory(tokenizer, observation="a 🦊")], tokenizer=tokenizer).html).tokens()
    observation = [text for source, text, _ in tokens if source == "env"]
    assert observation == ["a", " ⟨f0 9f⟩", "⟨a6⟩", "⟨8a⟩"]  # the four bytes of the fox


def test_an_id_without_a_text_is_shown_as_its_id(tokenizer):
    odd = Trajectory(segments=(Segment(Source.PROMPT, (151900,)),), stop_reason=StopReason.PROMPT_TOO_LONG)
    assert PageData(view([odd], tokenizer=tokenizer).html).tokens() == [("prompt", "⟨id 151900⟩", 0)]


def test_columns_of_different_lengths_are_refused_with_the_row(tokenizer):
    rows = [row_of(trajectory(tokenizer)) for _ in range(2)]
    rows[1]["env_mask"] = rows[1]["env_mask"][:-1]
    with pytest.raises(ValueError, match=r"row 1: env_mask has \d+ values but completion_ids has \d+"):
        view(rows, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="row 0 has no sources"):
        view([{name: value for name, value in rows[0].items() if name != "sources"}], tokenizer=tokenizer)
    with pytest.raises(ValueError, match="advantages has 1 values for 2 rollouts"):
        view([trajectory(tokenizer)] * 2, tokenizer=tokenizer, advantages=[0.5])


def test_columns_that_are_null_in_a_file_are_shown_as_absent_and_an_empty_file_as_empty(tokenizer, tmp_path):
    columns = rollout_columns([trajectory(tokenizer)] * 2, rewards=[{"c": 1.0}] * 2, advantages=[0.5, -0.5])
    half = {name: [columns[name][0], None] for name in ("prompt", "messages", "tool_results", "rewards", "advantage")}
    read = view(save_rollouts(columns | half, tmp_path / "half.parquet"), tokenizer=tokenizer)
    facts = [dict(head["facts"]) for head in PageData(read.html).heads]
    assert facts == [{"stop": "answered", "c": "1", "advantage": "+0.5"}, {"stop": "answered"}]
    parquet.write_table(pyarrow.table(columns).slice(0, 0), tmp_path / "empty.parquet")
    assert "0 rollouts, 0 completion tokens" in str(view(tmp_path / "empty.parquet", tokenizer=tokenizer))


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"completion_ids": None}, "row 0 has no completion_ids; expected a row"),
        ({"prompt_ids": "abc"}, "row 0: prompt_ids is 'abc', expected a list"),
        ({"prompt_ids": [1, None]}, "row 0: prompt_ids has None, expected whole numbers"),
        ({"prompt_ids": [0.5]}, "row 0: prompt_ids has 0.5, expected whole numbers"),
        ({"prompt_ids": [-1]}, "row 0 has the token id -1, expected ids of a vocabulary"),
        ({"sources": ["who"]}, "row 0: sources has 'who', expected the name of an author"),
        ({"stop_reason": "tired"}, "row 0: stop_reason is 'tired', expected one of answered, "),
        ({"messages": [3]}, "row 0: messages is [3], expected a list of messages"),
        ({"tool_results": [{"name": "mul"}]}, "row 0: tool_results is [{'name': 'mul'}], expected a list of results"),
        ({"rewards": {"c": "high"}}, "row 0: rewards is {'c': 'high'}, expected numbers by the names"),
    ],
)
def test_values_that_no_rollout_has_are_refused_with_the_row(planted, said, tokenizer):
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        view([row_of(trajectory(tokenizer)) | planted], tokenizer=tokenizer)
    assert "\n" not in str(refusal.value)


def test_what_is_no_tokenizer_or_no_list_of_rollouts_is_told_with_the_remedy(tokenizer, tmp_path):
    one = trajectory(tokenizer)
    with pytest.raises(ValueError, match="tokenizer is None, expected a transformers tokenizer; write AutoTok"):
        view([one], tokenizer=None)
    with pytest.raises(ValueError, match=r"one Trajectory was given, .*; write view\(\[\.\.\.\]\)"):
        view(one, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="row 1 is a int; expected a row as `load_rollouts` returns it"):
        view([one, 3], tokenizer=tokenizer)
    broken = rollout_columns([one]) | {"messages": ["["]}
    with pytest.raises(ValueError, match=r"row 0: messages is '\[', which is no JSON .* as `save_rollouts` writes it"):
        load_rollouts(save_rollouts(broken, tmp_path / "broken.parquet"))
