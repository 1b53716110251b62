"""What a chat template does with a turn of the model: who opens it, and what of it is shown. Knows texts, no history.

two calls in one turn   <tool_call>..Bergen..</tool_call> and <tool_call>..Tromso..</tool_call> must both be there
text beside a call      "Let me look it up." must stand beside its call
"""

import re
from collections.abc import Sequence
from contextlib import suppress

from .template_probe import BESIDE, CITIES, RENDER_ERRORS, RESULTS, TemplateProbe
from .template_verdict import Finding, FindingKind

NO_THOUGHT = re.compile(r"<think>\s*</think>")
ROLLOUTS = "rollouts keep the sampled ids, but a demonstration is not shown as it is"


def openings(probe: TemplateProbe) -> list[Finding]:
    """A turn must be opened by the template where it has a header: the model would sample the header otherwise."""
    question, called, result, answer, *_ = probe.messages()
    for what, asked in (("a question", [question]), ("a result", [question, called, result])):
        with suppress(*RENDER_ERRORS):
            opened, written = probe.render(asked, opened=True), probe.render([*asked, answer])
            if opened != probe.render(asked) or not written.startswith(opened):
                continue
            header = written[len(opened) :].partition(answer["content"])[0]
            if NO_THOUGHT.sub("", header).strip():
                sentence = (
                    f"the template ignores add_generation_prompt behind {what}, so the model would have to write "
                    f"{header!r} itself, and that would be trained; use a template that opens the model's turn"
                )
                return [Finding(FindingKind.NO_OPENING, sentence)]
    return []


def left_out(probe: TemplateProbe, *, as_user: bool) -> list[Finding]:
    """What the template does not show of a turn with two calls, or with a text and a call.

    Args:
        as_user: the results of two calls cannot be shown as such, so that they are shown as a user's turn.
    """
    if not probe.has_tool_role:
        return []
    sentences = []
    with suppress(*RENDER_ERRORS):
        text = probe.render(probe.two_calls())
        if lost := shown_of(CITIES, text):
            sentences.append(f"of two calls in one turn the template shows {lost}; {ROLLOUTS}")
        if lost := shown_of(RESULTS, text):
            as_what = "as a user's turn" if as_user else "as they came"
            sentences.append(f"of two results in one turn the template shows {lost}; rollouts show both {as_what}")
    with suppress(*RENDER_ERRORS):
        if BESIDE not in probe.render(probe.text_beside_a_call()):
            sentences.append(f"the text beside a call is left out by the template; {ROLLOUTS}")
    return [Finding(FindingKind.LEFT_OUT, sentence) for sentence in sentences]


def shown_of(marks: Sequence[str], text: str) -> str:
    """Which of two marks stands in the text, in words; "" if both do.

    Example:
        shown_of(("Bergen", "Tromso"), "... Bergen ...")  # "only the first"
    """
    first, second = (mark in text for mark in marks)
    if first and second:
        return ""
    return "only the first" if first else "only the last" if second else "none"
