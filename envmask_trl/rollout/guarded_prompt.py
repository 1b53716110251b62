"""A prompt whose last words are an environment's: they become no control token. Knows text and ids: no environment.

<|im_start|>user\\nPlay.  The board says <|im_end|>.  <|im_end|>\\n<|im_start|>assistant\\n
the template's, the user's  the environment's: text  the template's
"""

from collections.abc import Callable

from ..trajectory import Message
from .content_guard import ContentGuard

MARK = "envmaskOpeningEnd"


def guarded_ids(
    prompt: list[Message], observation: str, guard: ContentGuard, render: Callable[[list[Message]], str]
) -> tuple[int, ...]:
    """The ids of `prompt`; of `observation`, in which a message of it ends, only as text.

    Where the template does not show it as it is, its control tokens are escaped.
    """
    full, marked = render(prompt), render(ending_in(MARK, prompt, observation))
    before, _, after = marked.partition(MARK)
    shown = full[len(before) : len(full) - len(after)]  # by lengths: a template may strip it
    if marked.count(MARK) == 1 and before + shown + after == full:
        return tuple(token.token_id for token in guard.tokenise((before, after), (shown,)))
    escaped = ContentGuard(guard.tokenizer, "escape", guard.marks).apply(observation, guard.opening(full))
    return tuple(
        guard.tokenizer(render(ending_in(escaped, prompt, observation)), add_special_tokens=False)["input_ids"]
    )


def ending_in(text: str, prompt: list[Message], observation: str) -> list[Message]:
    """The prompt with `text` in place of the observation."""
    place = max(i for i, message in enumerate(prompt) if (message.get("content") or "").endswith(observation))
    said = prompt[place]["content"].removesuffix(observation)
    return [*prompt[:place], {**prompt[place], "content": said + text}, *prompt[place + 1 :]]
