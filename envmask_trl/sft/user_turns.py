"""What a chat template writes for a user's next message, between two turns of the model. Knows text, templates and ids.

    27<|im_end|>  \\n<|im_start|>user\\n  And Rome?  <|im_end|>\\n<|im_start|>assistant\\n
    answer closer head                 content    tail

As with tools' results, the block is read off a small probe conversation and tokenised alone; history is never rendered.
"""

from collections.abc import Sequence
from typing import Any

from ..rollout.content_guard import joined
from ..rollout.observations import ObservationEncoder
from ..rollout.response_templates import QUESTION, render
from ..rollout.turn_block import common_start, find_closer
from ..trajectory import Message, Segment, ToolCall
from .parts import Reason, RowProblem

ANSWER_MARK, MESSAGE_MARK = "envmaskAnswerEnd", "envmaskMessage"


def user_segments(encoder: ObservationEncoder, content: str, schemas: list, kwargs: dict[str, Any]) -> list[Segment]:
    """The segments of a user's message behind an answer that the model has closed.

    Args:
        encoder: of the conversation's tools.
        content: the message.
        schemas: the tools as the template is shown them.
        kwargs: as for `apply_chat_template`.

    Raises:
        RowProblem: the template does not write the message behind the answer.
    """
    alone, head, tail = around_message(encoder, schemas, kwargs)
    full = behind_answer(encoder, schemas, kwargs, {"role": "user", "content": content})
    if not (full.startswith(head) and full.endswith(tail) and len(full) >= len(head) + len(tail)):
        raise RowProblem(Reason.TEMPLATE, "the chat template writes a user's second message otherwise than as it is")
    shown = full[len(head) : len(full) - len(tail)]  # some templates trim it
    end, closer = find_closer(head, common_start(head, alone), encoder.renderer.stop_texts)
    tokens = encoder.guard.tokenise((closer + head[end:], tail), (shown,))
    return list(joined([token for token in tokens if token.end > len(closer)]))


def around_message(encoder: ObservationEncoder, schemas: list, kwargs: dict[str, Any]) -> tuple[str, str, str]:
    """What stands behind an answer that nothing follows; before a user's message behind one; behind that message.

    Raises:
        RowProblem: the template does not write the message behind the answer.
    """
    try:
        alone = behind_answer(encoder, schemas, kwargs)
        head, tail = behind_answer(encoder, schemas, kwargs, {"role": "user", "content": MESSAGE_MARK}).split(
            MESSAGE_MARK
        )
    except ValueError as error:
        raise RowProblem(Reason.TEMPLATE, "the chat template does not show a user's second message") from error
    return alone, head, tail


def behind_answer(encoder: ObservationEncoder, schemas: list, kwargs: dict[str, Any], *messages: Message) -> str:
    """What stands behind an answer: the turn's end, and the messages with the next turn's opening."""
    conversation = [QUESTION, {"role": "assistant", "content": ANSWER_MARK}, *messages]
    text = render(encoder.tokenizer, conversation, schemas, kwargs, add_generation_prompt=bool(messages))
    return text[text.rindex(ANSWER_MARK) + len(ANSWER_MARK) :]


def unwritten_closer(
    calls: Sequence[ToolCall], encoder: ObservationEncoder, schemas: list, kwargs: dict[str, Any]
) -> str:
    """The stop token of a turn that the template ends without one: GLM's opens the next message.

    "" where the template writes nothing at all that could end a turn, such as "User: .. Assistant: ..".

    Args:
        calls: the turn's.

    Raises:
        RowProblem: what the template writes behind a turn holds no stop token, so where the turn ends is not known.
    """
    alone, head, _ = around_message(encoder, schemas, kwargs)
    stops = encoder.renderer.stop_texts
    closer = encoder.renderer.block(calls).closer if calls else find_closer(head, common_start(head, alone), stops)[1]
    if not closer and (alone or encoder.guard.find(head)):
        raise RowProblem(
            Reason.TEMPLATE,
            f"behind {'a call' if calls else 'an answer'} the chat template writes no stop token "
            f"({', '.join(map(repr, stops))}); behind an answer it writes {head!r}: pass the ids that end the model's "
            "turns as stop_token_ids, or set eos_token",
        )
    return closer
