"""What `check_template` finds beyond one question, one call and one answer: headers, two calls, long ones, clocks."""

import pytest

from envmask_trl.inspect.template_check import judge_template
from envmask_trl.inspect.template_verdict import FindingKind

from .test_template_check import OPENING, TURN, changed, judged, the, tokenizer
from .tiny import CHAT_TEMPLATE, add

RESULT = "message.content + '\n</tool_response>'"
TOOL_BRANCH = "{%- if message.role == 'tool' -%}\n"
LATER_RESULT = "message.role == 'tool' and not loop.last and messages[loop.index].role == 'tool'"
RAISES_ON_TWO = (
    "{%- for m in messages if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at a time') }}{% endfor -%}"
)


@pytest.mark.parametrize("template", ["", "behind results only"])
def test_a_header_that_the_model_would_have_to_write_is_refused(template):
    """Its ids would be sampled, and trained as the model's own."""
    opening = "{%- if messages[-1].role == 'user' -%}" + OPENING + "{%- endif -%}" if template else ""
    verdict = judged(changed(OPENING, opening))
    sentence = the(verdict, FindingKind.NO_OPENING).sentence
    assert not verdict.trains and ("behind a result" if template else "behind a question") in sentence
    assert "would have to write '<|im_start|>assistant\\n' itself, and that would be trained; use a" in sentence


def test_a_template_whose_turns_have_no_header_needs_no_opening():
    """Mistral's question ends where the model's turn begins, whatever add_generation_prompt is."""
    plain = changed(OPENING, "").replace("'<|im_start|>' + message.role + '\n' + ", "")
    assert FindingKind.NO_OPENING not in judged(plain).kinds


def test_two_calls_on_which_a_template_raises_are_told_with_what_a_rollout_does():
    verdict = judged(RAISES_ON_TWO + CHAT_TEMPLATE)
    assert verdict.trains and str(the(verdict, FindingKind.LIMITED_INPUT)) == (
        "the template raises on two calls in one turn: one call at a time; the results of such calls are shown as a "
        "user's turn"
    )


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            changed("message.tool_calls or []", "(message.tool_calls or [])[:1]"),
            "of two calls in one turn the template shows only the first; rollouts keep the sampled ids",
        ),
        (
            changed(TOOL_BRANCH, f"{{%- if {LATER_RESULT} -%}}{{%- elif message.role == 'tool' -%}}\n"),
            "of two results in one turn the template shows only the last; rollouts show both as a user's turn",
        ),
        (
            changed("(message.content or '')", "('' if message.tool_calls else message.content)"),
            "the text beside a call is left out by the template; rollouts keep the sampled ids",
        ),
    ],
)
def test_what_is_left_out_of_a_turn_is_told(template, said):
    verdict = judged(template)
    assert verdict.trains and verdict.kinds == (FindingKind.LEFT_OUT,)
    assert the(verdict, FindingKind.LEFT_OUT).sentence.startswith(said)


@pytest.mark.parametrize(
    ("template", "event"),
    [
        ("{%- set messages = messages[-4:] -%}" + CHAT_TEMPLATE, "the user speaks again"),
        ("{%- set messages = messages[-8:] -%}" + CHAT_TEMPLATE, "12 results are there"),
        ("{%- set messages = messages[-30:] -%}" + CHAT_TEMPLATE, "the user has spoken 12 times"),
        (changed(RESULT, f"('' if loop.revindex > 6 else {RESULT})"), "12 results are there"),
        (changed(TURN, "{% if loop.revindex < 30 %}" + TURN + "{% endif %}"), "the user has spoken 12 times"),
    ],
)
def test_messages_that_a_long_conversation_loses_are_told(template, event):
    """A template with a window, or one that clears old results, was called append-only."""
    verdict = judged(template)
    assert verdict.summary == "trains, rewrites history" and verdict.kinds == (FindingKind.MESSAGES_DROPPED,)
    assert f"earlier messages are left out or cleared when {event} (first differing token" in str(verdict)


def test_a_count_of_messages_in_the_head_is_called_a_changing_head():
    verdict = judged("{{ messages | length }} messages\n" + CHAT_TEMPLATE)
    assert verdict.kinds == (FindingKind.CHANGING_HEAD,) and not verdict.appends_only
    assert "before the first message changes when the turn is written (first differing token 0: '1 m" in str(verdict)


@pytest.mark.parametrize(
    ("clock", "kind", "said"),
    [
        ("%d %b %Y", FindingKind.DATED, "the template writes the date ('%d %b %Y'), so a prompt is another one on"),
        ("%Y-%m-%d %H:%M", FindingKind.CHANGING_HEAD, "the template writes the time of day ('%Y-%m-%d %H:%M'), so"),
    ],
)
def test_a_clock_in_the_prompt_is_called_one(clock, kind, said):
    verdict = judged(f"{{{{ strftime_now('{clock}') }}}}\n" + CHAT_TEMPLATE)
    assert verdict.kinds == (kind,) and said in str(verdict)
    assert verdict.appends_only == (kind is FindingKind.DATED)
    never_read = f"{{% if date is defined %}}{{{{ strftime_now('{clock}') }}}}{{% endif %}}"
    assert judged(never_read + CHAT_TEMPLATE).findings == ()


def test_on_what_the_simplest_prompt_raises_is_told():
    on_tools = "{%- if tools -%}{{ raise_exception('no tools') }}{%- endif -%}"
    assert "raises when there are tools: no tools; use a template that takes tools" in str(judged(on_tools))
    verdict = judged("{{ 'cities only' if not tools or tools[0].function.parameters.properties.city.type }}")
    assert verdict.kinds == (FindingKind.RAISES,) and "raises on the tools that it was given: " in str(verdict)


def undocumented(city):
    return city


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([add, undocumented], "undocumented cannot be shown to a model .*; expected a docstring with a line for each"),
        (add, r"tools is a function, expected a list of functions or schemas; write tools=\[\.\.\.\]"),
    ],
)
def test_tools_that_have_no_schema_are_refused_in_one_sentence(tools, said):
    with pytest.raises(ValueError, match=said) as refusal:
        judge_template(tokenizer(), tools, CHAT_TEMPLATE)
    assert "\n" not in str(refusal.value)
