"""Demonstrations as rows for supervised fine-tuning, under the same mask as rollouts. Knows messages, ids and labels.

An assistant's turn is what the model would have sampled; everything around it comes from the same `ObservationEncoder`
as in a rollout. So a demonstration and a rollout of the same messages have the same ids and the same mask.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import get_json_schema

from .rollout.episodes import encode_prompt
from .rollout.observations import ObservationEncoder
from .rollout.response_templates import QUESTION, render
from .rollout.state import numbered
from .rollout.tool_calls import read_calls
from .trajectory import Message, Segment, Source, ToolCall

IGNORED = -100  # the label that no loss counts


def mask_observations(
    batch: Mapping[str, Sequence[Any]],
    *,
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[Callable[..., Any] | dict[str, Any]] | None = None,
    stop_token_ids: Collection[int] | None = None,
    template_kwargs: dict[str, Any] | None = None,
) -> dict[str, list[list[int]]]:
    """Encode conversations with tool calls; only what the model wrote has labels. A batched `datasets.map` function.

        ids      P P P   c c E   n t t n h   a a E
        labels   . . .   c c E   . . . . .   a a E        . = -100

    Use, and pass the result to `trl.SFTTrainer` as it is:
        dataset.map(mask_observations, batched=True, remove_columns=dataset.column_names,
                    fn_kwargs={"tokenizer": tokenizer, "tools": [weather]})

    Args:
        batch: column `messages`: system and user messages, then assistant and tool messages in turn. An assistant
            message may carry `tool_calls`, or be written out as text in `content`, broken calls included.
        tokenizer: a fast tokenizer with a chat template.
        tools: functions, or their JSON schemas, that the prompt shows to the model.
        stop_token_ids: every id that may end a turn; by default the tokenizer's eos.
        template_kwargs: as for `apply_chat_template`.

    Returns:
        `input_ids` and `labels`, lists of equal length per row.

    Raises:
        ValueError: a conversation has no assistant message, or a tool message that answers no turn.
    """
    kwargs = dict(template_kwargs or {})
    stop_ids = {tokenizer.eos_token_id} if stop_token_ids is None else set(stop_token_ids)
    schemas = [get_json_schema(tool) if callable(tool) else tool for tool in tools or ()]  # read once for all rows
    encoder = ObservationEncoder(tokenizer, tools=schemas, stop_token_ids=stop_ids, template_kwargs=kwargs)
    opened = render(tokenizer, [QUESTION], schemas, kwargs, add_generation_prompt=True)
    rows = []
    for index, messages in enumerate(batch["messages"]):
        try:
            rows.append(encode_demonstration(messages, tools=schemas, encoder=encoder, opened=opened, kwargs=kwargs))
        except ValueError as error:
            raise ValueError(f"row {index}: {error}") from error
    return {
        "input_ids": [[token for segment in row for token in segment.token_ids] for row in rows],
        "labels": [
            [token if segment.source is Source.MODEL else IGNORED for segment in row for token in segment.token_ids]
            for row in rows
        ],
    }


def encode_demonstration(
    messages: Sequence[Message], *, tools: list, encoder: ObservationEncoder, opened: str, kwargs: dict[str, Any]
) -> list[Segment]:
    """The segments of one conversation, in the order that a rollout would have appended them."""
    messages = [without_nulls(message) for message in messages]
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), None)
    if first is None:
        raise ValueError(f"no assistant message among the roles {[message['role'] for message in messages]}")
    segments = [Segment(Source.PROMPT, encode_prompt(messages[:first], tools, encoder.tokenizer, kwargs))]
    turn = -1
    calls: tuple[ToolCall, ...] = ()
    position = first
    while position < len(messages):
        message = messages[position]
        if message["role"] == "assistant":
            turn += 1
            segments.append(Segment(Source.MODEL, encode_turn(message, tools, encoder, opened, kwargs)))
            calls = numbered(read_calls(message), turn)
            position += 1
            continue
        end = next((i for i in range(position, len(messages)) if messages[i]["role"] != "tool"), len(messages))
        if end == position or segments[-1].source is not Source.MODEL:
            raise ValueError(
                f"message {position} has the role {message['role']!r}, expected an assistant's or a tool's"
            )
        contents = [str(result["content"]) for result in messages[position:end]]
        stand_ins = calls if len(calls) == len(contents) else stand_in_calls(messages[position:end], turn)
        if end < len(messages):  # an observation that nothing follows is not part of the row
            observation = encoder.encode(stand_ins, contents, closed=True)
            assert observation is not None
            segments += observation.segments
        position = end
    return segments


def stand_in_calls(results: Sequence[Message], turn: int) -> tuple[ToolCall, ...]:
    """Calls for results whose turn shows none, as after a call that could not be read."""
    return numbered(tuple(ToolCall("", str(result.get("name") or "unreadable_call"), {}) for result in results), turn)


def encode_turn(
    message: Message, tools: list, encoder: ObservationEncoder, opened: str, kwargs: dict[str, Any]
) -> tuple[int, ...]:
    """The ids that the model would have sampled for this message, its end-of-turn token included.

    Args:
        opened: a question as the template shows it to the model, up to where the turn begins.

    Raises:
        ValueError: the template writes something else before the turn than its own generation prompt.
    """
    tokenizer = encoder.tokenizer
    written = render(tokenizer, [QUESTION, message], tools, kwargs)
    if not written.startswith(opened):
        raise ValueError("the chat template does not open an assistant's turn with its own generation prompt")
    text = written[len(opened) :]
    ends = [text.rfind(stop) + len(stop) for stop in encoder.renderer.stop_texts if stop in text]
    return tuple(tokenizer(text[: max(ends)] if ends else text, add_special_tokens=False)["input_ids"])


def without_nulls(message: Message) -> Message:
    """The message without keys that Arrow has filled with null because another row has them."""
    return {key: value for key, value in message.items() if value is not None}
