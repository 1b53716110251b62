"""Conversations with tool calls as the parts of a rollout. Knows messages, templates and ids: no labels, no data sets.

An assistant's turn is what the model would have sampled; everything around it comes from the same `ObservationEncoder`
as in a rollout. So a demonstration and a rollout of the same messages have the same ids and the same mask.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils import get_json_schema

from ..rollout.episodes import encode_prompt
from ..rollout.observations import ObservationEncoder
from ..rollout.response_templates import QUESTION, render
from ..rollout.state import numbered
from ..rollout.tool_calls import read_calls
from ..rollout.tool_context import hide_context
from ..rollout.turn_loop import UNREADABLE
from ..trajectory import Message, Source, ToolCall
from .arrow import restored, tools_of_row
from .message_check import check_messages, is_learned, with_text
from .parts import Kind, Part, Reason, RowProblem
from .shown import check_shown
from .user_turns import unwritten_closer, user_segments

THOUGHT_MARK = "envmaskThought"
THOUGHT_END = "</think>"
ERROR_PREFIX = "Error:"  # how the tool loop begins a result that failed

Tools = Sequence[Callable[..., Any] | dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What the template shows around one set of tools.

    Example:
        Setting(schemas=[{"type": "function", ...}], encoder=encoder, opened="<|im_start|>user ... assistant\\n")
    """

    schemas: list[Any]  # JSON schemas
    encoder: ObservationEncoder
    opened: str  # a question as the template shows it to the model, up to where the turn begins


class ConversationReader:
    """Reads conversations; what depends on the tools alone is made once for each set of tools.

    Example:
        reader = ConversationReader(tokenizer, stop_token_ids={tokenizer.eos_token_id})
        reader.parts(messages, tools=[weather])

    Args:
        tokenizer: a fast tokenizer with a chat template.
        stop_token_ids: every id that may end a turn.
        template_kwargs: as for `apply_chat_template`.
        by_kind: tell thoughts from calls and answers; without it a turn is one part.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_token_ids: Collection[int],
        template_kwargs: dict[str, Any] | None = None,
        by_kind: bool = False,
    ):
        self.tokenizer = tokenizer
        self.stop_ids = set(stop_token_ids)
        self.kwargs = dict(template_kwargs or {})
        self.by_kind = by_kind
        self._settings: dict[str, Setting] = {}

    def setting(self, tools: Tools) -> Setting:
        schemas = [get_json_schema(hide_context(tool)) if callable(tool) else tool for tool in tools]
        key = json.dumps(schemas, default=str)
        if key not in self._settings:
            encoder = ObservationEncoder(
                self.tokenizer, tools=schemas, stop_token_ids=self.stop_ids, template_kwargs=self.kwargs
            )
            opened = render(self.tokenizer, [QUESTION], schemas, self.kwargs, add_generation_prompt=True)
            self._settings[key] = Setting(schemas, encoder, opened)
        return self._settings[key]

    def own_setting(self, value: Any) -> Setting:
        """The setting of a row's column `tools`.

        Raises:
            RowProblem: the template cannot show them.
        """
        tools = tools_of_row(value)
        try:
            return self.setting(tools)
        except (TemplateError, TypeError, ValueError) as error:
            raise RowProblem(Reason.TOOLS, f"the chat template cannot show the row's `tools`: {error}") from error

    def parts(self, messages: Sequence[Message], tools: Tools, own_tools: Any = None) -> list[Part]:
        """The parts of one conversation, in the order in which a rollout would have appended them.

        Args:
            tools: what the prompt shows to the model, functions or JSON schemas.
            own_tools: the row's column `tools`, which takes their place.

        Raises:
            RowProblem: no rollout has these messages or tools, or the template cannot write them.
        """
        check_messages(messages)
        setting = self.setting(tools) if own_tools is None else self.own_setting(own_tools)
        messages = [with_text(restored(message, setting.schemas)) for message in messages]
        first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), None)
        if first is None:
            roles = [message["role"] for message in messages]
            raise RowProblem(Reason.NOT_A_ROLLOUT, f"no assistant message among the roles {roles}")
        try:
            prompt = encode_prompt(messages[:first], setting.schemas, self.tokenizer, self.kwargs)
            check_shown(
                dict(enumerate(messages[:first])),
                lambda asked: render(self.tokenizer, asked, setting.schemas, self.kwargs, add_generation_prompt=True),
            )
            return [Part(Source.PROMPT, prompt), *self._turns(messages, first, setting)]
        except RowProblem:
            raise
        except (TemplateError, TypeError, ValueError) as error:
            raise RowProblem(Reason.TEMPLATE, f"the chat template cannot show the conversation: {error}") from error

    def _turns(self, messages: list[Message], first: int, setting: Setting) -> list[Part]:
        parts: list[Part] = []
        calls: tuple[ToolCall, ...] = ()
        turn, position = -1, first
        while position < len(messages):
            message = messages[position]
            end = next((i for i in range(position, len(messages)) if messages[i]["role"] != "tool"), len(messages))
            answers_a_turn = bool(parts) and parts[-1].source is Source.MODEL
            if message["role"] == "assistant" and not answers_a_turn:
                turn += 1
                calls = numbered(self._calls(message), turn)
                results = results_behind(messages, position)
                failed = any(result["content"].startswith(ERROR_PREFIX) for result in results)
                learned = is_learned(message, position)
                check_shown({position: message}, lambda asked: self._written(asked[0], setting))
                parts += self._turn(message, setting, turn, failed=failed, learned=learned)
                position += 1
            elif end > position and answers_a_turn:
                if end < len(messages):  # an observation that nothing follows is not part of the row
                    parts += self._observation(messages[position:end], calls, turn, setting)
                position = end
            elif message["role"] == "user" and answers_a_turn and not calls:
                if position + 1 < len(messages):
                    segments = user_segments(setting.encoder, message["content"], setting.schemas, self.kwargs)
                    parts += [Part(Source.TEMPLATE, segment.token_ids) for segment in segments]
                position += 1
            else:
                expected = "a tool's or a user's" if answers_a_turn else "an assistant's"
                raise RowProblem(
                    Reason.NOT_A_ROLLOUT, f"message {position} has the role {message['role']!r}, expected {expected}"
                )
        return parts

    def _calls(self, message: Message) -> tuple[ToolCall, ...]:
        try:
            return read_calls(message)
        except ValueError as error:
            raise RowProblem(Reason.NOT_A_ROLLOUT, str(error)) from error

    def _observation(
        self, results: list[Message], calls: tuple[ToolCall, ...], turn: int, setting: Setting
    ) -> list[Part]:
        contents = [result["content"] for result in results]
        if calls and len(calls) != len(contents):
            raise RowProblem(
                Reason.NOT_A_ROLLOUT,
                f"{len(contents)} results follow {len(calls)} calls, expected one for each",
            )
        stand_ins = in_order_of(results, calls) if calls else stand_in_calls(results, turn)
        observation = setting.encoder.encode(stand_ins, contents, closed=True)
        assert observation is not None
        return [Part(segment.source, segment.token_ids) for segment in observation.segments]

    def _turn(self, message: Message, setting: Setting, turn: int, *, failed: bool, learned: bool) -> list[Part]:
        """The ids that the model would have sampled for this message, its end-of-turn token included."""
        ids = self._ids(self._written(message, setting))
        if not self.stop_ids.isdisjoint(ids[:-1]):
            raise RowProblem(
                Reason.NOT_A_ROLLOUT,
                "an assistant's message holds an end-of-turn token, which ends a turn in a rollout",
            )
        kind = Kind.CALL if message.get("tool_calls") else Kind.ANSWER
        thought = self._thought_length(message, ids, setting) if self.by_kind else 0
        runs = ((Kind.THOUGHT, ids[:thought]), (kind, ids[thought:]))
        return [Part(Source.MODEL, run, each, turn, failed, learned) for each, run in runs if run]

    def _thought_length(self, message: Message, ids: tuple[int, ...], setting: Setting) -> int:
        """Tokens that the turn has in common with the same turn without its calls, or without its answer."""
        content = message.get("content") or ""
        if message.get("tool_calls"):
            stub = {key: value for key, value in message.items() if key != "tool_calls"}
        else:
            stub = {**message, "content": content[: content.rfind(THOUGHT_END) + len(THOUGHT_END)]}
            if THOUGHT_END not in content:
                stub["content"] = ""
        alone = self._ids(self._written(stub, setting))
        pairs = enumerate(zip(ids, alone, strict=False))
        return next((i for i, (one, other) in pairs if one != other), min(len(ids), len(alone)))

    def _written(self, message: Message, setting: Setting) -> str:
        """The text of the turn behind the opening that the template writes, its end-of-turn token included.

        Where the opening begins a thought and the message has none, the thought is empty.
        """
        for thought in (None, THOUGHT_MARK):
            shown = message if thought is None else {**message, "reasoning_content": thought}
            written = render(self.tokenizer, [QUESTION, shown], setting.schemas, self.kwargs)
            if written.startswith(setting.opened):
                text = written[len(setting.opened) :].replace(THOUGHT_MARK, "")
                stops = setting.encoder.renderer.stop_texts
                ends = [text.rfind(stop) + len(stop) for stop in stops if stop in text]
                if ends:
                    return text[: max(ends)]
                calls = numbered(self._calls(message), 0)
                return text + unwritten_closer(calls, setting.encoder, setting.schemas, self.kwargs)
            if message.get("reasoning_content"):
                break
        raise RowProblem(
            Reason.TEMPLATE, "the chat template does not open an assistant's turn with its own generation prompt"
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def results_behind(messages: list[Message], position: int) -> list[Message]:
    """The tool messages that answer the turn at `position`."""
    end = next((i for i in range(position + 1, len(messages)) if messages[i]["role"] != "tool"), len(messages))
    return messages[position + 1 : end]


def in_order_of(results: Sequence[Message], calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The call that each result answers: by its `tool_call_id` where all have one of a call, else by place."""
    by_id = {call.id: call for call in calls}
    named = [str(result.get("tool_call_id")) for result in results]
    return tuple(by_id[name] for name in named) if set(named) == by_id.keys() and len(by_id) == len(calls) else calls


def stand_in_calls(results: Sequence[Message], turn: int) -> tuple[ToolCall, ...]:
    """Calls for results whose turn shows none, as after a call that could not be read."""
    return numbered(tuple(ToolCall("", str(result.get("name") or UNREADABLE), {}) for result in results), turn)
