"""The page in a real browser: what it draws, what a click and a key do, and that nothing in it runs."""

from random import Random

import pytest

from envmask_trl import Source, StopReason, view
from envmask_trl.inspect.page import page
from tests.browser import CHROMIUM, Browser
from tests.real_tokenizers import load
from tests.viewing import HOSTILE, READY, RUN, UNPRINTABLE, choose, eight_rollouts, expected_tokens, talk, trajectory

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH to open the page with")

DRAWN = (
    "[...document.querySelectorAll('#tokens span')].map(s => [s.className, s.firstChild.data, +s.lastChild.innerText])"
)
LISTED = "[...document.querySelectorAll('.row')].map(row => Number(row.dataset.number))"


@pytest.fixture(scope="module")
def tokenizer():
    return load("qwen3")


@pytest.fixture(scope="module")
def tab():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def eight(tokenizer, tmp_path_factory):
    return eight_rollouts(tokenizer).save(tmp_path_factory.mktemp("pages") / "eight.html")


def facts(tab):
    return dict(
        tab.evaluate("[...document.querySelectorAll('#facts dt')].map(t => [t.innerText, t.nextSibling.innerText])")
    )


def test_the_browser_draws_every_token_with_its_source_and_its_digit(tab, tokenizer, tmp_path):
    only = trajectory(tokenizer, observation="7\t6\nsix 🦊")
    tab.open(view([only], tokenizer=tokenizer).save(tmp_path / "page.html"), until=READY)
    fox = [["env", " ⟨f0 9f⟩", 0], ["env", "⟨a6⟩", 0], ["env", "⟨8a⟩", 0]]
    expected = [list(token) for token in expected_tokens(tokenizer, only)]
    at = next(place for place, token in enumerate(expected) if "�" in token[1])
    assert tab.evaluate(DRAWN) == [*expected[:at], *fox, *expected[at + 3 :]]
    color = "getComputedStyle(document.querySelector('.ids .{}')).backgroundColor"
    colors = [tab.evaluate(color.format(source)) for source in Source]
    assert len(set(colors)) == 4  # the style sheet came through the page's own policy


def test_what_a_rollout_says_never_runs_and_breaks_nothing(tab, tokenizer, tmp_path):
    odd = HOSTILE + UNPRINTABLE
    said = talk(call=odd, arguments={odd: odd}, result=odd, answer=odd)
    text = HOSTILE + UNPRINTABLE[:-1]
    rollout = trajectory(tokenizer, asked=text, observation=text, turns=(text, text), **said)
    row = {**view([rollout], tokenizer=tokenizer, rewards=[{odd: 1.0}]).rollouts[0].row, "prompt": odd}
    shown_view = view([row], tokenizer=tokenizer, title=odd)
    before = len(tab.complaints()), len(tab.requests())
    path = shown_view.save(tmp_path / "hostile.html")
    tab.open(path, until=READY)
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    tab.evaluate("[...document.querySelectorAll('#tokens span')].forEach(s => showFacts(s))")
    assert tab.evaluate("[typeof hostile, document.images.length, document.scripts.length]") == ["undefined", 0, 2]
    assert tab.evaluate("document.querySelectorAll('#tokens span').length") == len(expected_tokens(tokenizer, rollout))
    assert "</script>" in tab.evaluate("document.querySelector('article.env pre').innerText")
    assert not set("\t\r\x00\x1b\u202e\u2028\ud800") & set(tab.evaluate("document.body.innerText").replace("\t", ""))
    assert len(tab.complaints()) == before[0]
    assert tab.requests()[before[1] :] == [path.as_uri()]


def test_a_script_that_came_into_the_page_all_the_same_is_refused_by_its_policy(tab, tmp_path):
    html = page("x", summary="", data=f'</script><script>{RUN}</script><img src="x" onerror="{RUN}"><p id="end"></p>')
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    tab.open(tmp_path / "page.html", until="document.getElementById('end')")
    assert tab.evaluate("[typeof hostile, document.scripts.length]") == ["undefined", 3]
    assert sum("Content Security Policy" in complaint for complaint in tab.complaints()) >= 2


def test_hovering_and_arrow_keys_tell_what_is_known_of_a_token(tab, eight):
    tab.open(eight, until=READY)
    tab.press("j")  # prompt of six tokens: What is  7 * 6 ?, then mul
    at = tab.evaluate("tokens.findIndex(token => token.text === 'mul')")
    tab.hover(f'[data-at="{at}"]')
    assert facts(tab) == {
        "text": "'mul'", "id": "24160", "source": "model, turn 0", "log-prob": "-0.5 (probability 0.6065)",
        "advantage": "-3", "mask": "1, trained",
    }  # fmt: skip
    tab.click(f'[data-at="{at}"]')
    tab.press("ArrowLeft")
    told = facts(tab)
    assert (told["text"], told["source"], told["log-prob"], told["advantage"], told["mask"]) == (
        "'?'", "prompt", "none", "none", "0, not trained"
    )  # fmt: skip
    tab.press("ArrowRight", "ArrowRight")
    assert facts(tab)["log-prob"] == "-1.5 (probability 0.2231)"
    assert tab.evaluate("selected") == 1  # the arrows moved in the tokens, not in the list


def test_a_click_and_keys_choose_the_rollout(tab, eight):
    tab.open(eight, until=READY)
    assert tab.evaluate("document.querySelector('#conversation h2').innerText") == "#0"
    tab.click("#row-5")
    assert tab.evaluate("document.querySelector('#conversation h2').innerText") == "#5"
    assert "number 5." in tab.evaluate("document.querySelector('#conversation').innerText")
    visited = []
    for key in ("j", "ArrowDown", "j", "k", "g", "G", "ArrowUp"):
        tab.press(key)
        visited.append(tab.evaluate("Number(document.querySelector('[aria-selected=true]').dataset.number)"))
    assert visited == [6, 7, 7, 6, 0, 7, 6]
    assert "mul\nerror\n0.25 s\n42" in tab.evaluate("document.querySelector('article.env').innerText")


def test_keys_search_toggle_and_help(tab, eight):
    tab.open(eight, until=READY)
    tab.press("/", *"NUMBER 5", "Escape")
    tab.wait_for("document.querySelectorAll('.row').length === 1")
    assert tab.evaluate(LISTED) == [5]
    hits = tab.evaluate("[...document.querySelectorAll('.hit')].map(s => s.firstChild.data)")
    assert hits == [" number", " ", "5"]
    tab.press("?")
    assert tab.evaluate("help.open")
    tab.press("Escape")
    assert not tab.evaluate("help.open")
    page_color = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(page_color)
    tab.press("t")
    dark = tab.evaluate(page_color)
    tab.click("#theme")
    assert (light, dark, tab.evaluate(page_color)) == ("rgb(246, 247, 249)", "rgb(17, 20, 24)", light)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"step": "1"}, [2, 3]),
        ({"stop": "length"}, [1]),
        ({"tool": "mul"}, [0, 2, 4, 6]),
        ({"tool": "\nnone"}, [1, 3, 5, 7]),
        ({"tool": "\nfailed"}, [6]),
        ({"reward": "correct", "least": "0.2", "most": "0.4"}, [2, 3, 4]),
        ({"reward": "\nadvantage", "most": "-3"}, [0, 1]),
        ({"tool": "mul", "least": "0.3", "search": "answer number"}, [4, 6]),
        ({"search": "nowhere"}, []),
    ],
    ids=str,
)
def test_filters_leave_what_was_asked_for(tab, eight, chosen, expected):
    tab.open(eight, until=READY)
    for name, value in chosen.items():
        choose(tab, name, value)
    assert tab.evaluate(LISTED) == expected
    assert tab.evaluate("document.getElementById('count').innerText") == f"{len(expected)} of 8"
    tab.click("[type=reset]")
    tab.wait_for("document.querySelectorAll('.row').length === 8")


def test_in_a_notebook_it_draws_and_is_apart_from_the_notebook(tab, tokenizer, tmp_path):
    cell = view([trajectory(tokenizer)], tokenizer=tokenizer)._repr_html_()
    html = f"<style>span, b, li {{ display: none !important }}</style><p><b>the notebook</b></p>{cell}"
    (tmp_path / "notebook.html").write_text(html, encoding="utf-8")
    tab.open(tmp_path / "notebook.html", until="document.readyState === 'complete'")
    assert tab.evaluate("document.querySelector('b').offsetWidth") == 0  # neither's styles reach the other
    assert tab.evaluate("document.styleSheets.length") == 1
    with tab.inside_frame():
        tab.wait_for(READY)
        assert tab.evaluate("document.querySelector('#tokens span').offsetWidth") > 0
        assert (
            tab.evaluate("(() => { try { parent.document.body; } catch (e) { return e.name; } })()") == "SecurityError"
        )
        tab.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: 't'}))")


@pytest.mark.slow
def test_two_thousand_rollouts_of_a_thousand_tokens_are_usable(tab, tokenizer, tmp_path):
    random = Random(0)
    columns = {
        "sources": (["model"] * 100 + ["env"] * 80) * 5,
        "env_mask": ([1] * 100 + [0] * 80) * 5,
        "turn_index": [turn for number in range(5) for turn in [number] * 100 + [-1] * 80],
    }
    rows = []
    for reason in StopReason:  # 8 rows, 250 times each
        prompt_ids, completion_ids = (random.choices(range(1000, 9000), k=length) for length in (100, 900))
        logprobs = [-random.random() for _ in completion_ids]
        rows.append(columns | {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs})
        rows[-1] |= {"stop_reason": reason, "messages": [{"role": "assistant", "content": "a " * 2000}]}
    path = view(rows * 250, tokenizer=tokenizer).save(tmp_path / "many.html")
    tab.open(path, until=READY)
    assert path.stat().st_size < 20e6 and int(tab.evaluate(READY)) < 20_000  # milliseconds, on a busy machine
    assert tab.evaluate("document.querySelectorAll('*').length") < 5_000
    tab.press("G")
    assert tab.evaluate("selected") == 1999 and 1999 in tab.evaluate(LISTED)
    choose(tab, "stop", "length")
    assert tab.evaluate("document.getElementById('count').innerText") == "250 of 2000"
