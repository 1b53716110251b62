"""Does a chat template rewrite what it has rendered? Knows renderings of a probe conversation: no known templates.

Each rendering of a growing conversation must start with the one before it. Where it does not, marks in the messages
tell what was rewritten: a thought that is gone, a tool schema that stands elsewhere, a turn that was the last one.
"""

from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from ..rollout.drift import common_length
from .template_probe import SCHEMA, THOUGHT, Rendering, TemplateProbe
from .template_verdict import Finding, FindingKind, TextDifference

SENTENCES = {
    FindingKind.SCHEMA_MOVED: "the tool schema moves when {event}",
    FindingKind.THINKING_DROPPED: "thinking of earlier turns is dropped when {event}",
    FindingKind.LAST_TURN_BRANCH: "a turn is written differently while it is the last one, seen when {event}",
    FindingKind.OPENING: "a turn is opened with text that the written turn lacks, seen when {event}",
    FindingKind.MERGED_TOKENS: "the text only grows, but its last token merges with the next when {event}",
}
AROUND = 12  # tokens shown on both sides of a difference


def rewrites(probe: TemplateProbe) -> list[Finding]:
    """What the template rewrites, each kind once, with the first differing token. Empty: it only appends."""
    found: dict[FindingKind, Finding] = {}
    for thought in ("", THOUGHT):
        for earlier, later in pairwise(probe.steps(thought)):
            difference = first_difference(probe.tokenizer, earlier.text, later.text)
            if difference is not None:
                kind = name_rewrite(earlier, later)
                found.setdefault(kind, Finding(kind, SENTENCES[kind].format(event=later.event), difference))
    return list(found.values())


def name_rewrite(earlier: Rendering, later: Rendering) -> FindingKind:
    """Which kind of rewriting makes `later` differ from `earlier`."""
    if later.text.startswith(earlier.text):
        return FindingKind.MERGED_TOKENS
    if later.text.find(SCHEMA) != earlier.text.find(SCHEMA):
        return FindingKind.SCHEMA_MOVED
    if later.text.count(THOUGHT) < earlier.text.count(THOUGHT):
        return FindingKind.THINKING_DROPPED
    return FindingKind.OPENING if earlier.opened else FindingKind.LAST_TURN_BRANCH


def first_difference(tokenizer: PreTrainedTokenizerBase, before: str, after: str) -> TextDifference | None:
    """Where the ids of `after` stop to start with those of `before`; None if they do to the end."""
    held = tokenizer(before, add_special_tokens=False)["input_ids"]
    rendered = tokenizer(after, add_special_tokens=False)["input_ids"]
    position = common_length(held, rendered)
    if position == len(held):
        return None
    window = slice(max(position - AROUND, 0), position + AROUND)
    return TextDifference(position, str(tokenizer.decode(held[window])), str(tokenizer.decode(rendered[window])))
