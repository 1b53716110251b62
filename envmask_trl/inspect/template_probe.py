"""A made-up conversation, rendered by a chat template as it grows. Knows messages and texts: no judgement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..rollout.response_templates import render
from ..trajectory import ToolCall

RENDER_ERRORS = (TemplateError, TypeError, ValueError)
THOUGHT, SCHEMA = "envmaskThought", "envmaskSchema"  # stand in the conversation where thinking and tools do
CALL = ToolCall("call00000", "envmask_probe", {"city": "Oslo"})
TOOL = {
    "type": "function",
    "function": {
        "name": CALL.name,
        "description": SCHEMA,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "a city"}},
            "required": ["city"],
        },
    },
}
EVENTS = (
    "the user asks",
    "the turn is written",
    "a result follows",
    "the turn is written",
    "the user speaks again",
    "the turn is written",
)


@dataclass(frozen=True, slots=True)
class Rendering:
    """The conversation up to one moment.

    Example:
        Rendering("a result follows", text="...<|im_start|>assistant\\n", opened=True)
    """

    event: str  # what has just happened
    text: str
    opened: bool  # ends in an opening for the model, not in a turn of the model


@dataclass(frozen=True)
class TemplateProbe:
    """Asks one template: a question, a call and its result, an answer, a further question, a further answer.

    Example:
        TemplateProbe(tokenizer, [TOOL], {}, stop_texts=["<|im_end|>"], has_tool_role=True).steps()[0].text
    """

    tokenizer: PreTrainedTokenizerBase
    tools: list
    template_kwargs: dict[str, Any]
    stop_texts: Sequence[str]
    has_tool_role: bool

    def render(self, messages: list[dict[str, Any]], *, opened: bool = False) -> str:
        return render(self.tokenizer, messages, self.tools, self.template_kwargs, add_generation_prompt=opened)

    def steps(self, thought: str = "") -> list[Rendering]:
        """The conversation after each message, as far as the template can render it."""
        messages, steps = self.messages(thought), []
        for number, event in enumerate(EVENTS, start=1):
            opened = messages[number - 1]["role"] != "assistant"
            try:
                text = self.render(messages[:number], opened=opened)
            except RENDER_ERRORS:
                break
            steps.append(Rendering(event, text if opened else up_to_stop(text, self.stop_texts), opened))
        return steps

    def messages(self, thought: str = "") -> list[dict[str, Any]]:
        """The messages; the assistant's have `thought` and a number as their thinking."""
        thinking = [{"reasoning_content": f"{thought}{number}"} if thought else {} for number in range(3)]
        called, result = self._call_and_result()
        return [
            {"role": "user", "content": "How warm is Oslo?"},
            {**called, **thinking[0]},
            result,
            {"role": "assistant", "content": "7 in Oslo", **thinking[1]},
            {"role": "user", "content": "And in Rome?"},
            {"role": "assistant", "content": "20 in Rome", **thinking[2]},
        ]

    def turn_ends(self) -> dict[str, tuple[str, str]]:
        """What follows a call and an answer: while the turn is the last one, and until the text of the next message."""
        texts = [step.text for step in self.steps()]
        turns = {"a call": (1, "Oslo" if self.has_tool_role else "a call", "7 degrees")}
        turns["an answer"] = (3, "7 in Oslo", "And in Rome?")
        return {
            what: (texts[at].rpartition(left)[2], texts[at + 1].rpartition(right)[0].rpartition(left)[2])
            for what, (at, left, right) in turns.items()
            if at + 1 < len(texts)
        }

    def problems(self) -> dict[str, str]:
        """What the template raises, by the input on which it does."""
        question, called, result = self.messages()[:3]
        objects = call_message(CALL.arguments)
        tool_result = {**result, "role": "tool", "name": CALL.name, "tool_call_id": CALL.id}
        inputs = {
            "a system message": [{"role": "system", "content": "Be brief."}, question],
            "a call whose arguments are an object": [question, objects],
            "a tool's message": [question, called if self.has_tool_role else objects, tool_result],
            "a second question": self.messages()[:5],
        }
        errors = {name: error_of(partial(self.render, shown)) for name, shown in inputs.items()}
        return {name: error for name, error in errors.items() if error}

    def _call_and_result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self.has_tool_role:
            return {"role": "assistant", "content": "a call"}, {"role": "user", "content": "7 degrees"}
        result = {"role": "tool", "name": CALL.name, "tool_call_id": CALL.id, "content": "7 degrees"}
        return call_message('{"city": "Oslo"}' if self._wants_text else CALL.arguments), result

    @cached_property
    def _wants_text(self) -> bool:
        """Some templates take the arguments of a call as JSON text only."""
        question = {"role": "user", "content": "How warm is Oslo?"}
        return bool(error_of(lambda: self.render([question, call_message(CALL.arguments)])))


def call_message(arguments: Any) -> dict[str, Any]:
    """An assistant's message with one call."""
    call = {"type": "function", "id": CALL.id, "function": {"name": CALL.name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def up_to_stop(text: str, stop_texts: Sequence[str]) -> str:
    """What the model has sampled: the text through its last stop token, unless more than white space follows."""
    end = max((text.rfind(stop) + len(stop) for stop in stop_texts if stop in text), default=0)
    return text if text[end:].strip() else text[:end]


def error_of(action: Callable[[], Any]) -> str:
    """The first line of what a template raises, "" if it raises nothing."""
    try:
        action()
    except RENDER_ERRORS as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""
