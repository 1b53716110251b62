"""Does a chat template rewrite what it has rendered? Knows renderings of a probe conversation: no known templates.

Each rendering of a growing conversation must start with the one before it. Where it does not, marks in the messages
tell what was rewritten: a thought that is gone, a tool schema that stands elsewhere, a turn that was the last one.
"""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from ..rollout.drift import common_length
from ..rollout.turn_block import common_start
from .template_probe import CLOCK, SCHEMA, THOUGHT, Rendering, TemplateProbe
from .template_verdict import Finding, FindingKind, TextDifference

SENTENCES = {
    FindingKind.SCHEMA_MOVED: "the tool schema moves when {event}",
    FindingKind.THINKING_DROPPED: "thinking of earlier turns is dropped when {event}",
    FindingKind.MESSAGES_DROPPED: "earlier messages are left out or cleared when {event}",
    FindingKind.CHANGING_HEAD: "what stands before the first message changes when {event}",
    FindingKind.LAST_TURN_BRANCH: "a turn is written differently while it is the last one, seen when {event}",
    FindingKind.OPENING: "a turn is opened with text that the written turn lacks, seen when {event}",
    FindingKind.MERGED_TOKENS: "the text only grows, but its last token merges with the next when {event}",
}
AROUND = 12  # tokens shown on both sides of a difference
READ_CLOCK, TIME_OF_DAY = re.compile(f"{CLOCK}(.*?){CLOCK}"), re.compile("%[-#]?[HIMSfpXcsT]")


def rewrites(probe: TemplateProbe) -> list[Finding]:
    """What the template rewrites, each kind once, with the first differing token. Empty: it only appends."""
    probe = probe.with_stopped_clock()
    found = {finding.kind: finding for finding in what_the_clock_changes(probe)}
    for steps in (probe.steps(), probe.steps(THOUGHT)):
        for earlier, later in pairwise(steps):
            difference = first_difference(probe.tokenizer, earlier.text, later.text)
            if difference is not None:
                kind = name_rewrite(earlier, later)
                found.setdefault(kind, Finding(kind, SENTENCES[kind].format(event=later.event), difference))
    return [*found.values(), *rewrites_of_long_ones(probe, found)]


def rewrites_of_long_ones(probe: TemplateProbe, known: Collection[FindingKind]) -> list[Finding]:
    """What shows in a long conversation only: messages that are dropped, or anything where a short one was kept."""
    for earlier, later in pairwise(probe.long_steps()):
        kind = name_rewrite(earlier, later)
        is_news = kind is FindingKind.MESSAGES_DROPPED or not any(each.rewrites for each in known)
        if kind is not FindingKind.MERGED_TOKENS and kind not in known and is_news:
            difference = first_difference(probe.tokenizer, earlier.text, later.text)
            return [Finding(kind, SENTENCES[kind].format(event=later.event), difference)]
    return []


def what_the_clock_changes(probe: TemplateProbe) -> list[Finding]:
    """Whether the prompt says what day, or even what time it is. `probe` has a stopped clock."""
    formats = READ_CLOCK.findall("".join(step.text for step in probe.steps()[:1]))
    if any(TIME_OF_DAY.search(each) for each in formats):
        sentence = f"the template writes the time of day ({formats[0]!r}), so each rendering is another one"
        return [Finding(FindingKind.CHANGING_HEAD, sentence)]
    if formats:
        sentence = f"the template writes the date ({formats[0]!r}), so a prompt is another one on another day"
        return [Finding(FindingKind.DATED, sentence)]
    return []


def name_rewrite(earlier: Rendering, later: Rendering) -> FindingKind:
    """Which kind of rewriting makes `later` differ from `earlier`."""
    if later.text.startswith(earlier.text):
        return FindingKind.MERGED_TOKENS
    if place_of_schema(later.text, earlier.marks) != place_of_schema(earlier.text, earlier.marks):
        return FindingKind.SCHEMA_MOVED
    if any(later.text.count(mark) < earlier.text.count(mark) for mark in earlier.marks):
        return FindingKind.MESSAGES_DROPPED
    if len(common_start(earlier.text, later.text)) < start_of_messages(earlier):
        return FindingKind.CHANGING_HEAD
    if later.text.count(THOUGHT) < earlier.text.count(THOUGHT):
        return FindingKind.THINKING_DROPPED
    return FindingKind.OPENING if earlier.opened else FindingKind.LAST_TURN_BRANCH


def place_of_schema(text: str, marks: Sequence[str]) -> tuple[str, ...] | None:
    """The messages that stand before the tool schema; None if it is not there."""
    before, found, _ = text.partition(SCHEMA)
    return tuple(mark for mark in marks if mark in before) if found else None


def start_of_messages(rendering: Rendering) -> int:
    return min((rendering.text.find(mark) for mark in rendering.marks if mark in rendering.text), default=0)


def first_difference(tokenizer: PreTrainedTokenizerBase, before: str, after: str) -> TextDifference | None:
    """Where the ids of `after` stop to start with those of `before`; None if they do to the end."""
    held = tokenizer(before, add_special_tokens=False)["input_ids"]
    rendered = tokenizer(after, add_special_tokens=False)["input_ids"]
    position = common_length(held, rendered)
    if position == len(held):
        return None
    window = slice(max(position - AROUND, 0), position + AROUND)
    return TextDifference(position, str(tokenizer.decode(held[window])), str(tokenizer.decode(rendered[window])))
