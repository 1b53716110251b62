"""The pairs of `known_pairs`, each played once. Knows how a pair is played and what must hold.

python -m tests.template_pairs     # prints the table of all pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerFast

from envmask_trl import (
    ObservationEncoder,
    RolloutLimits,
    ScriptedSampler,
    Segment,
    Source,
    StopReason,
    Trajectory,
    run_rollouts,
)
from envmask_trl.inspect.template_check import judge_template
from envmask_trl.inspect.template_probe import CALL, TemplateProbe
from envmask_trl.inspect.template_verdict import TemplateVerdict
from envmask_trl.rollout.drift import common_length

from .known_pairs import PAIRS, Pair, load

RESULT = '{"temp": 7, "sky": "grå", "note": "say \\"hi\\""}'
QUESTION = {"role": "user", "content": "How warm is Oslo?"}


def weather(city: str) -> str:
    """The weather now.

    Args:
        city: name of a city
    """
    return RESULT


def verdict_of(pair: Pair) -> TemplateVerdict:
    return judge_template(
        load(pair.tokenizer), [weather], chat_template=pair.chat_template, stop_token_ids=pair.stop_ids
    )


@dataclass(frozen=True, slots=True)
class Played:
    """A rollout of two calls and an answer under one pair, and what it was given.

    Example:
        Played(row, turns=((10, 19), (11, 19), (12, 19)), page="<|im_start|>assistant\\n...")
    """

    row: Trajectory
    turns: tuple[tuple[int, ...], ...]
    page: str  # the second call's result: a whole conversation in the template's own control tokens


def play(pair: Pair) -> Played:
    """A call answered with RESULT, one answered with a page of fake turns, and an answer."""
    tokenizer, kwargs = load(pair.tokenizer), {"chat_template": pair.chat_template}
    page = fake_conversation(pair)
    results = iter([RESULT, page])

    def weather(city: str) -> str:
        """The weather now.

        Args:
            city: name of a city
        """
        return next(results)

    turns = (written_turn(pair, call("Oslo")), written_turn(pair, call("Rome")), written_turn(pair, answer("7")))
    (row,) = run_rollouts(
        [[QUESTION]],
        tokenizer=tokenizer,
        sampler=ScriptedSampler([list(turns)]),
        tools=[weather],
        limits=RolloutLimits(max_completion_length=8192),
        stop_token_ids=pair.stop_ids,
        template_kwargs=kwargs,
    )
    return Played(row, turns, page)


def call(city: str) -> dict:
    function = {"name": "weather", "arguments": {"city": city}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": CALL.id, "function": function}],
    }


def answer(text: str) -> dict:
    return {"role": "assistant", "content": text}


def probe_of(pair: Pair, *, has_tool_role: bool = True) -> TemplateProbe:
    tokenizer = load(pair.tokenizer)
    stops = [tokenizer.decode([token_id]) for token_id in sorted(pair.stop_ids)]
    return TemplateProbe(tokenizer, [weather], {"chat_template": pair.chat_template}, stops, has_tool_role)


def written_turn(pair: Pair, message: dict) -> tuple[int, ...]:
    """What the model would sample for this message behind the opening that the template writes, its end included."""
    tokenizer, probe = load(pair.tokenizer), probe_of(pair)
    opened = ids(tokenizer, probe.render([QUESTION], opened=True))
    for thought in ({}, {"reasoning_content": "hm"}):
        written = probe.render([QUESTION, {**message, **thought}])
        turn = ids(tokenizer, through_stop(written, probe.stop_texts))
        shared = common_length(opened, turn)
        if shared == len(opened):
            return turn[shared:]
    return (*ids(tokenizer, "hm\n</think>\n\n"), *turn[shared:])


def through_stop(text: str, stops: list[str]) -> str:
    return text[: max(text.rfind(stop) + len(stop) for stop in stops if stop in text)]


def fake_conversation(pair: Pair, *, has_tool_role: bool = True) -> str:
    """A page that holds what the template writes for a question, a call, its result and an answer, twice over."""
    return f"page {probe_of(pair, has_tool_role=has_tool_role).steps()[-1].text} bye"


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def encoder_of(pair: Pair) -> ObservationEncoder:
    kwargs = {"chat_template": pair.chat_template}
    return ObservationEncoder(
        load(pair.tokenizer), tools=[weather], stop_token_ids=pair.stop_ids, template_kwargs=kwargs
    )


def holds(pair: Pair, verdict: TemplateVerdict) -> str:
    """Play the pair and check every boundary; how it was checked, in words.

    Raises:
        AssertionError: a boundary is wrong.
    """
    played, tokenizer = play(pair), load(pair.tokenizer)
    row = played.row
    assert row.stop_reason is StopReason.ANSWERED, row.stop_reason
    sampled = tuple(segment.token_ids for segment in row.segments if segment.source is Source.MODEL)
    assert sampled == played.turns, "a sampled id was changed"
    mask = tuple(int(source is Source.MODEL) for source in row.sources)
    assert row.env_mask == mask and sum(mask) == sum(map(len, played.turns))
    foreign = tokenizer.decode([token for token, own in zip(row.completion_ids, mask, strict=True) if not own])
    renderer, calls = encoder_of(pair).renderer, [replace(CALL, name="weather")]
    shown = [renderer.shown(calls, 0, content) for content in (RESULT, played.page)]
    between = verdict.between.replace(CALL.name, "weather")
    assert foreign == "".join(between.replace("...", content) for content in shown), foreign
    assert not opens_a_turn(pair, row.segments)
    if not verdict.appends_only:
        return "sampled ids + block"
    whole = probe_of(pair).render([QUESTION, *row.messages])
    held = tokenizer.decode([*row.prompt_ids, *row.completion_ids])
    at = common_length(held, whole)
    assert at == len(held), f"{held[at - 20 : at + 40]!r} is rendered as {whole[at - 20 : at + 40]!r}"
    return "= full rendering"


def opens_a_turn(pair: Pair, segments: Sequence[Segment]) -> bool:
    """Whether an observation holds a control token, or the ids with which a turn of the model opens."""
    encoder = encoder_of(pair)
    opening = ids(load(pair.tokenizer), encoder.renderer.block([CALL]).pieces[-1].strip())
    observed = [segment.token_ids for segment in segments if segment.source is Source.ENV]
    return any(
        set(run) & encoder.guard.control_ids or any(run[at : at + len(opening)] == opening for at, _ in enumerate(run))
        for run in observed
    )


def table() -> str:
    """One line for each pair: the verdict, how its boundaries were checked, and the same with one space changed."""
    lines = [f"{'tokenizer':12} {'template':25} {'as it is':48} with one space changed", "-" * 134]
    for pair in PAIRS:
        shown = []
        for each in (pair, replace(pair, changed=True)):
            verdict = verdict_of(each)
            refusing = dict.fromkeys(finding.kind.value for finding in verdict.findings if finding.kind.refuses)
            shown.append(f"{verdict.summary}: {holds(each, verdict) if verdict.trains else ', '.join(refusing)}")
        lines.append(f"{pair.tokenizer:12} {pair.template:25} {shown[0]:48} {shown[1]}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
