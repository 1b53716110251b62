"""What a chat template writes for a user's next message, between two turns of the model. Knows text, templates and ids.

    27<|im_end|>  \\n<|im_start|>user\\n  And Rome?  <|im_end|>\\n<|im_start|>assistant\\n
    answer closer head                 content    tail

As with tools' results, the block is read off a small probe conversation and tokenised alone; history is never rendered.
"""

from typing import Any

from ..rollout.content_guard import joined
from ..rollout.observations import ObservationEncoder
from ..rollout.response_templates import QUESTION, render
from ..rollout.turn_block import common_start, find_closer
from ..trajectory import Segment
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
    answer = {"role": "assistant", "content": ANSWER_MARK}

    def behind_answer(*messages: dict[str, Any], opens: bool) -> str:
        text = render(encoder.tokenizer, [QUESTION, answer, *messages], schemas, kwargs, add_generation_prompt=opens)
        return text[text.rindex(ANSWER_MARK) + len(ANSWER_MARK) :]

    try:
        alone = behind_answer(opens=False)
        head, tail = behind_answer({"role": "user", "content": MESSAGE_MARK}, opens=True).split(MESSAGE_MARK)
        full = behind_answer({"role": "user", "content": content}, opens=True)
    except ValueError as error:
        raise RowProblem(Reason.TEMPLATE, "the chat template does not show a user's second message") from error
    if not (full.startswith(head) and full.endswith(tail) and len(full) >= len(head) + len(tail)):
        raise RowProblem(Reason.TEMPLATE, "the chat template writes a user's second message otherwise than as it is")
    shown = full[len(head) : len(full) - len(tail)]  # some templates trim it
    end, closer = find_closer(head, common_start(head, alone), encoder.renderer.stop_texts)
    tokens = encoder.guard.tokenise((closer + head[end:], tail), (shown,))
    return list(joined([token for token in tokens if token.end > len(closer)]))
