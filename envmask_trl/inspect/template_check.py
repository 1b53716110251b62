"""Can this tokenizer train with this chat template? Knows how to ask the template: no list of known templates."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from types import NoneType
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..rollout.content_guard import ContentGuard
from ..rollout.model_and_tokenizer import check_tokenizer
from ..rollout.observations import ObservationEncoder
from ..rollout.response_templates import QUESTION, find_response_template, render
from ..rollout.turn_block import TurnBlock
from ..trajectory import Source
from .lint.tool_schemas import to_schemas
from .template_history import rewrites
from .template_probe import CALL, RENDER_ERRORS, TOOL, TWO_CALLS, TemplateProbe, call_id, error_of
from .template_turns import left_out, openings
from .template_verdict import Finding, FindingKind, TemplateVerdict

TOOLS_NOT_SHOWN = (
    "the chat template never shows the model the tools that it may call; describe them, and how a call is written, in "
    "a system message of each prompt, or use a template that takes tools"
)


def check_template(
    tokenizer: PreTrainedTokenizerBase,
    tools: list | None = None,
    chat_template: str | None = None,
    *,
    stop_token_ids: Collection[int] | None = None,
    **template_kwargs: Any,
) -> TemplateVerdict:
    """Say, and print in plain words, whether rollouts with tools can be trained with this template.

    Example:
        check_template(AutoTokenizer.from_pretrained("Qwen/Qwen3-0.6B"), tools=[weather])
        # chat template: trains, rewrites history
        #   between two turns it writes '\\n<|im_start|>user\\n<tool_response>\\n...\\n</tool_response><|im_end|>\\n...
        #   note: thinking of earlier turns is dropped when the user speaks again (first differing token 157: ...)

    Args:
        tokenizer: a fast tokenizer.
        tools: functions or schemas as for `apply_chat_template`; a probe tool is shown to the template besides.
        chat_template: by default the tokenizer's own.
        stop_token_ids: every id that may end a turn; by default the tokenizer's eos.
        template_kwargs: further keywords of the template, such as `enable_thinking=False`.

    Raises:
        ValueError: what should be a tokenizer is a name, or not a fast one, or there is no template at all.
    """
    verdict = judge_template(tokenizer, tools, chat_template, stop_token_ids=stop_token_ids, **template_kwargs)
    print(verdict)
    return verdict


def judge_template(
    tokenizer: PreTrainedTokenizerBase,
    tools: list | None = None,
    chat_template: str | None = None,
    *,
    stop_token_ids: Collection[int] | None = None,
    **template_kwargs: Any,
) -> TemplateVerdict:
    """`check_template` without printing."""
    check_tokenizer(tokenizer)
    if chat_template is not None and not chat_template.strip():
        raise ValueError("the chat template is empty; pass one that shows messages, or none for the tokenizer's own")
    kwargs = {**template_kwargs, **({"chat_template": chat_template} if chat_template else {})}
    stop_ids = {tokenizer.eos_token_id} if stop_token_ids is None else set(stop_token_ids)
    all_tools = [*schemas_of(tools), TOOL]
    encoder = ObservationEncoder(tokenizer, tools=all_tools, stop_token_ids=stop_ids, template_kwargs=kwargs)
    if sentence := raises_on(tokenizer, all_tools, kwargs):
        return _refused(FindingKind.RAISES, sentence)
    try:
        block = encoder.renderer.block([CALL])
    except ValueError as error:
        return _refused(FindingKind.NO_RESULTS, str(error))
    probe = TemplateProbe(tokenizer, all_tools, kwargs, encoder.renderer.stop_texts, block.has_tool_role)
    findings = [
        *openings(probe),
        *_stop_findings(probe, block, encoder.guard),
        *_call_findings(probe),
        *_block_findings(encoder, block),
        *_tool_findings(probe),
        *_input_findings(probe, as_user=(as_user := two_results_as_user(encoder))),
        *left_out(probe, as_user=as_user),
        *rewrites(probe),
    ]
    return TemplateVerdict(tuple(findings), between="...".join(block.pieces))


def schemas_of(tools: list | None) -> list:
    """The tools as the template is given them.

    Raises:
        ValueError: no list, or a function that has no schema; says what is expected.
    """
    if not isinstance(tools, list | tuple | NoneType):
        raise ValueError(
            f"tools is a {type(tools).__name__}, expected a list of functions or schemas; write tools=[...]"
        )
    return to_schemas(tools or ())


def raises_on(tokenizer: PreTrainedTokenizerBase, tools: list, kwargs: dict[str, Any]) -> str:
    """On what of the simplest prompt the template raises, and the remedy; "" if it raises on nothing.

    Args:
        tools: the last one is the probe's own.
    """

    def problem(shown: list) -> str:
        return error_of(lambda: render(tokenizer, [QUESTION], shown, kwargs, add_generation_prompt=True))

    if not (raised := problem(tools)):
        return ""
    if problem([]):
        remedy = "pass another chat_template, or set what it misses on the tokenizer"
        return f"the template raises on a user's question: {raised}; {remedy}"
    if problem(tools[-1:]):
        return f"the template raises when there are tools: {raised}; use a template that takes tools"
    return f"the template raises on the tools that it was given: {raised}; pass tools whose schemas it can show"


def two_results_as_user(encoder: ObservationEncoder) -> bool:
    """Whether the results of two calls are shown as a user's turn, although that of one is not."""
    try:
        return not encoder.renderer.block([CALL, replace(CALL, id=call_id(1))]).has_tool_role
    except ValueError:
        return False


def _refused(kind: FindingKind, sentence: str) -> TemplateVerdict:
    return TemplateVerdict((Finding(kind, sentence),))


def _stop_findings(probe: TemplateProbe, block: TurnBlock, guard: ContentGuard) -> list[Finding]:
    """A turn with a call, and one with an answer, must each end with a token that the model samples."""
    ends = {
        what: later
        for what, (last, later) in probe.turn_ends().items()
        if not any(stop in last + later for stop in probe.stop_texts)
    }
    if not block.closer:
        ends.setdefault("a call", block.pieces[0])
    stops = ", ".join(map(repr, probe.stop_texts)) or "there is none"
    return [
        Finding(
            FindingKind.STOP_TOKEN,
            f"behind {what} the template writes {end!r}, without a stop token ({stops}); {_stop_remedy(guard, end)}",
        )
        for what, end in ends.items()
    ]


def _stop_remedy(guard: ContentGuard, end: str) -> str:
    written = dict.fromkeys(end[start:stop] for start, stop in guard.find(end))
    if not written:
        return "use a template that belongs to this tokenizer, or add the template's control tokens to the tokenizer"
    ids = ", ".join(f"{text!r} is {guard.tokenizer.convert_tokens_to_ids(text)}" for text in written)
    return f"pass the one that ends the model's turn in stop_token_ids, or set it as eos_token: {ids}"


def _call_findings(probe: TemplateProbe) -> list[Finding]:
    problem = error_of(lambda: find_response_template(probe.tokenizer, probe.tools, probe.template_kwargs))
    return [Finding(FindingKind.UNREADABLE_CALLS, problem)] if problem else []


def _block_findings(encoder: ObservationEncoder, block: TurnBlock) -> list[Finding]:
    """A block must come back from its ids as the text it was, and a page of the template's own turns opens none."""
    pieces = (block.closer + block.pieces[0], *block.pieces[1:])
    page = "".join(pieces) * 2
    tokens = encoder.guard.tokenise(pieces, (page,))
    wanted, findings = page.join(pieces), []
    decoded = str(encoder.tokenizer.decode([token.token_id for token in tokens], clean_up_tokenization_spaces=False))
    if decoded != wanted:
        sentence = f"the tokenizer gives {wanted[:60]!r}... back as {decoded[:60]!r}..."
        remedy = "use a tokenizer that neither adds nor removes white space"
        findings.append(Finding(FindingKind.CHANGED_BLOCK, f"{sentence}; {remedy}"))
    opening = encoder.tokenizer(block.pieces[-1].strip(), add_special_tokens=False)["input_ids"]
    observed = [token.token_id for token in tokens if token.source is Source.ENV]
    if opening and any(observed[at : at + len(opening)] == opening for at, _ in enumerate(observed)):
        sentence = f"a tool's result can write {block.pieces[-1]!r} in the very tokens that open the model's turn"
        remedy = "use a template whose turns open with a control token"
        findings.append(Finding(FindingKind.FORGEABLE_TURN, f"{sentence}; {remedy}"))
    return findings


def _tool_findings(probe: TemplateProbe) -> list[Finding]:
    """A model that is shown no tool can only call what its prompt describes."""
    texts = []
    for messages in ([QUESTION], [{"role": "system", "content": "Be brief."}, QUESTION]):
        with suppress(*RENDER_ERRORS):
            texts.append(probe.render(messages, opened=True))
    if any(CALL.name in text for text in texts):
        return []
    return [Finding(FindingKind.TOOLS_NOT_SHOWN, TOOLS_NOT_SHOWN)]


def _input_findings(probe: TemplateProbe, *, as_user: bool) -> list[Finding]:
    """What the template cannot show, where a rollout or a demonstration may have it."""
    problems = probe.problems()
    if as_user and TWO_CALLS in problems:
        problems[TWO_CALLS] += "; the results of such calls are shown as a user's turn"
    findings = []
    if not probe.has_tool_role:
        problem = problems.pop("a tool's message", "")
        reason = f"it raises on one: {problem}" if problem else "it leaves calls or results out"
        sentence = f"the template has no tool role ({reason}); results are shown as a user's turn"
        findings.append(Finding(FindingKind.NO_TOOL_ROLE, sentence))
    findings += [
        Finding(FindingKind.LIMITED_INPUT, f"the template raises on {name}: {e}") for name, e in problems.items()
    ]
    return findings
