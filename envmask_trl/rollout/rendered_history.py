"""An observation as the difference of two renderings. Knows messages and the chat template: no sampler, no tools.

The whole conversation is rendered with the new results and compared with the ids that the rollout holds. The block
mode of `ObservationEncoder` needs none of this; it is here to compare with, and to count what a template would change.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import TemplateError

from ..trajectory import Message, ToolCall
from .content_guard import ContentGuard, SourcedToken
from .drift import Drift, name_gaps, realign
from .turn_block import BlockRenderer, result_mark

THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class History:
    """What a rollout holds when results are to be added: its ids, and the messages that they stand for.

    Example:
        History(token_ids=(*row.prompt_ids, *sampled), messages=(*prompt, assistant_message))
    """

    token_ids: Sequence[int]
    messages: Sequence[Message]  # the prompt's too; the last one is the assistant's turn


class HistoryRenderer:
    """Renders whole conversations whose results cannot become control tokens.

    Args:
        renderer: of the template.
        guard: tokenises what was rendered.
        strict: a prefix that differs raises.
    """

    def __init__(self, renderer: BlockRenderer, guard: ContentGuard, *, strict: bool):
        self.renderer, self.guard, self.strict = renderer, guard, strict

    def added(
        self, history: History, calls: Sequence[ToolCall], contents: Sequence[str]
    ) -> tuple[list[SourcedToken], tuple[Drift, ...]]:
        """The tokens that a rendering with the results of `calls` adds to `history`, and what it changes in it.

        Raises:
            ValueError: the template cannot show this conversation; or `strict`, and it changes what is held.
        """
        pieces, shown = self._pieces(history.messages, calls, contents)
        tokens = self.guard.tokenise(pieces, shown)
        start = len("".join(pieces[: -len(contents)])) + len("".join(shown[: -len(contents)]))
        before = [token.token_id for token in tokens if token.end <= start]  # no new result can be taken for old ids
        held = list(history.token_ids)
        boundary, gaps = realign(held, before)
        if not gaps:
            return tokens[boundary:], ()
        thoughts = [str(m[key]).strip() for m in history.messages for key in THOUGHT_KEYS if m.get(key)]
        drift = name_gaps(
            gaps,
            held,
            before,
            decode=lambda ids: str(self.guard.tokenizer.decode(list(ids))),
            control_ids=self.guard.control_ids,
            thoughts=thoughts,
        )
        if self.strict:
            raise ValueError(f"{told(drift)}; use mode='block', which never renders history")
        return tokens[boundary:], drift

    def _pieces(
        self, messages: Sequence[Message], calls: Sequence[ToolCall], contents: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """The scaffold around the contents of all tool messages, and these contents as the template shows them."""
        results = [
            {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}
            for call, content in zip(calls, contents, strict=True)
        ]
        marked: list[Message] = []
        shown: list[str] = []
        for message in (*messages, *results):
            if message["role"] != "tool":
                marked.append(message)
                continue
            call = ToolCall(str(message.get("tool_call_id") or ""), str(message.get("name") or ""), {})
            marked.append({**message, "content": result_mark(len(shown))})
            shown.append(self.renderer.shown((call,), 0, str(message["content"])))
        try:
            rest = self.renderer.render(marked, add_generation_prompt=True)
            pieces = []
            for number in range(len(shown)):
                before, rest = rest.split(result_mark(number), 1)
                pieces.append(before)
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(
                f"the chat template cannot render this conversation as a whole ({error}); use mode='block'"
            ) from error
        return [*pieces, rest], shown


def told(drift: Sequence[Drift]) -> str:
    """The drift as a sentence, without its full stop."""
    counts = ", ".join(f"{number} x {kind}" for kind, number in Counter(d.kind.value for d in drift).items())
    first = drift[0]
    return (
        f"the chat template renders earlier turns differently ({counts}; first at token {first.position}: "
        f"held {first.held[:60]!r}, rendered {first.rendered[:60]!r})"
    )
