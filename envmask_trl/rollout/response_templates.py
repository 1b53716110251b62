"""Which response template reads the calls that a chat template writes. Knows text and templates: no tokens."""

from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl import chat_template_utils

from .tool_context import hide_contexts

PROBE_NAME, PROBE_ARGUMENT, PROBE_VALUE = "envmask_probe", "city", "Oslo"
QUESTION = {"role": "user", "content": "question"}


def find_response_template(
    tokenizer: PreTrainedTokenizerBase, tools: list | None, template_kwargs: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """The response template for this tokenizer, and the text with which its chat template opens a turn.

    The tokenizer's own one wins. Otherwise a call is written by the chat template, and the first of TRL's response
    templates that reads the same call back is taken, so a template need not be known byte by byte.

    Raises:
        ValueError: nothing reads the call back.
    """
    opening = generation_prompt(tokenizer, tools, template_kwargs)
    own = getattr(tokenizer, "response_template", None)
    if own is not None:
        return own, opening
    turn = written_call(tokenizer, tools, template_kwargs)
    for candidate in known_response_templates():
        if turn is not None and _reads_back(tokenizer, candidate, turn):
            return candidate, opening
    raise ValueError(
        "no known format reads the tool calls that this tokenizer's chat template writes; set "
        "`tokenizer.response_template`, or pass `parser=`, a function from a turn's text to a ParsedTurn"
    )


def generation_prompt(tokenizer: PreTrainedTokenizerBase, tools: list | None, template_kwargs: dict[str, Any]) -> str:
    """What the template writes to open an assistant's turn, for example `<|im_start|>assistant\\n`."""
    without = render(tokenizer, [QUESTION], tools, template_kwargs)
    opened = render(tokenizer, [QUESTION], tools, template_kwargs, add_generation_prompt=True)
    return opened.removeprefix(without) if opened.startswith(without) else opened


def written_call(tokenizer: PreTrainedTokenizerBase, tools: list | None, template_kwargs: dict[str, Any]) -> str | None:
    """An assistant's turn with one call, its header included, as the chat template writes it; None if it cannot."""
    function = {"name": PROBE_NAME, "arguments": {PROBE_ARGUMENT: PROBE_VALUE}}
    calls = [{"type": "function", "id": "call00000", "function": function}]
    question = render(tokenizer, [QUESTION], tools, template_kwargs)
    try:
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        return render(tokenizer, [QUESTION, message], tools, template_kwargs).removeprefix(question)
    except (TemplateError, TypeError):
        return None


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    tools: list | None,
    template_kwargs: dict[str, Any],
    *,
    add_generation_prompt: bool = False,
) -> str:
    """The text of a conversation; `tools=[]` is passed as None because some templates write a preamble for it."""
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=hide_contexts(tools) or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **template_kwargs,
        )
    except (ArithmeticError, LookupError, AttributeError, RecursionError) as error:  # a template may do anything
        raise TemplateError(f"{type(error).__name__}: {error}") from error
    assert isinstance(text, str)
    return text


def known_response_templates() -> list[dict[str, Any]]:
    """TRL's response templates: its module-level dicts that have `fields`."""
    return [
        value
        for name, value in vars(chat_template_utils).items()
        if name.endswith("_template") and isinstance(value, dict) and "fields" in value
    ]


def _reads_back(tokenizer: PreTrainedTokenizerBase, candidate: dict[str, Any], turn: str) -> bool:
    anchor = candidate.get("start_anchor", "")
    if anchor not in turn:
        return False
    try:
        message = tokenizer.parse_response(turn.split(anchor, 1)[1], schema=candidate, prefix=anchor)
        (call,) = message["tool_calls"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    function = call.get("function", call)
    return function == {"name": PROBE_NAME, "arguments": {PROBE_ARGUMENT: PROBE_VALUE}} and not message.get("content")
