"""A made-up conversation, rendered by a chat template as it grows. Knows messages and texts: no judgement."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..rollout.response_templates import render
from ..trajectory import ToolCall

RENDER_ERRORS = (TemplateError, TypeError, ValueError)
THOUGHT, SCHEMA = "envmaskThought", "envmaskSchema"  # stand in the conversation where thinking and tools do
CITIES, RESULTS, BESIDE = ("Bergen", "Tromso"), ("8 degrees", "3 degrees"), "Let me look it up."
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
CLOCK = "envmaskClock"
STOPPED_CLOCK = f"{{%- macro strftime_now(format) -%}}{CLOCK}{{{{ format }}}}{CLOCK}{{%- endmacro %}}"
TWO_CALLS = "two calls in one turn"
LONG = 12  # calls in the first turn of the long conversation, and turns in it


@dataclass(frozen=True, slots=True)
class Rendering:
    """The conversation up to one moment.

    Example:
        Rendering("a result follows", text="...<|im_start|>assistant\\n", opened=True)
    """

    event: str  # what has just happened
    text: str
    opened: bool  # ends in an opening for the model, not in a turn of the model
    marks: tuple[str, ...] = ()  # what stands in its messages: each question, call, result and answer


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

    def with_stopped_clock(self) -> "TemplateProbe":
        """The same probe with the clock's format in place of a date; itself if the template reads no clock."""
        template = self.tokenizer.get_chat_template(self.template_kwargs.get("chat_template"), self.tools)
        stopped = replace(self, template_kwargs=self.template_kwargs | {"chat_template": STOPPED_CLOCK + template})
        reads_one = "strftime_now" in template and not error_of(partial(stopped.render, self.messages()[:1]))
        return stopped if reads_one else self

    def steps(self, thought: str = "") -> list[Rendering]:
        """The conversation after each message, as far as the template can render it."""
        messages, steps = self.messages(thought), []
        for number, event in enumerate(EVENTS, start=1):
            opened = messages[number - 1]["role"] != "assistant"
            try:
                text = self.render(messages[:number], opened=opened)
            except RENDER_ERRORS:
                break
            text = text if opened else up_to_stop(text, self.stop_texts)
            steps.append(Rendering(event, text, opened, marks_of(messages[:number])))
        return steps

    def long_steps(self) -> list[Rendering]:
        """A conversation behind the third and the last result of its first turn, and after many turns."""
        messages, steps = self.long_conversation(), []
        events = {7: "three results are there", 1 + 2 * LONG: f"{LONG} results are there"}
        for length, event in (events | {len(messages): f"the user has spoken {LONG} times"}).items():
            try:
                text = self.render(messages[:length], opened=True)
            except RENDER_ERRORS:
                break
            steps.append(Rendering(event, text, True, marks_of(messages[:length])))
        return steps

    def long_conversation(self) -> list[dict[str, Any]]:
        """A question that takes LONG calls, then questions that take none; the last one waits for its answer."""
        messages = [{"role": "user", "content": "question00?"}]
        for number in range(LONG):
            messages += self._call_and_result(f"city{number:02}", f"result{number:02}")
        for number in range(1, LONG):
            messages.append({"role": "assistant", "content": f"answer{number:02}"})
            messages.append({"role": "user", "content": f"question{number:02}?"})
        return messages

    def messages(self, thought: str = "") -> list[dict[str, Any]]:
        """The messages; the assistant's have `thought` and a number as their thinking."""
        thinking = [{"reasoning_content": f"{thought}{number}"} if thought else {} for number in range(3)]
        called, result = self._call_and_result("Oslo", "7 degrees")
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
        if self.has_tool_role:
            inputs |= {TWO_CALLS: self.two_calls(), "text beside a call": self.text_beside_a_call()}
        errors = {name: error_of(partial(self.render, shown)) for name, shown in inputs.items()}
        return {name: error for name, error in errors.items() if error}

    def two_calls(self) -> list[dict[str, Any]]:
        """A question, a turn with two calls, and their results."""
        return [self.messages()[0], call_message(*map(self._arguments, CITIES)), *map(result_message, RESULTS, (0, 1))]

    def text_beside_a_call(self) -> list[dict[str, Any]]:
        """A question, a turn with a text and a call, and its result."""
        return [self.messages()[0], {**call_message(self._arguments(CITIES[0])), "content": BESIDE}, self.messages()[2]]

    def _call_and_result(self, city: str, content: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self.has_tool_role:
            written = "a call" if city == "Oslo" else f"a call of {city}"
            return {"role": "assistant", "content": written}, {"role": "user", "content": content}
        return call_message(self._arguments(city)), result_message(content)

    def _arguments(self, city: str) -> Any:
        return json.dumps({"city": city}) if self._wants_text else {"city": city}

    @cached_property
    def _wants_text(self) -> bool:
        """Some templates take the arguments of a call as JSON text only."""
        question = {"role": "user", "content": "How warm is Oslo?"}
        return bool(error_of(lambda: self.render([question, call_message(CALL.arguments)])))


def call_message(*arguments: Any) -> dict[str, Any]:
    """An assistant's message with a call for each of the arguments."""
    calls = [
        {"type": "function", "id": call_id(number), "function": {"name": CALL.name, "arguments": each}}
        for number, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result_message(content: str, number: int = 0) -> dict[str, Any]:
    """The result of the call of that number in a turn."""
    return {"role": "tool", "name": CALL.name, "tool_call_id": call_id(number), "content": content}


def call_id(number: int) -> str:
    return f"{CALL.id[:-1]}{number}"


def marks_of(messages: list[dict[str, Any]]) -> tuple[str, ...]:
    """What must stand in a rendering of the messages: their contents, and the cities that their calls ask for."""
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    cities = [(json.loads(each) if isinstance(each, str) else each)["city"] for each in calls]
    return (*(message["content"] for message in messages if message["content"]), *cities)


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
