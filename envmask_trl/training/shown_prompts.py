"""The prompts of a batch as the chat template is given them. Knows messages and schemas: no tokens, no trainer.

content     [{"type": "text", "text": "6 * 7?"}]           ->  "6 * 7?"
arguments   {"city": "Oslo", "expression": None} of Arrow  ->  {"city": "Oslo"}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers.utils import get_json_schema

from ..rollout.message_text import with_texts
from ..sft.arrow import restored


def shown_prompts(prompts: Sequence[Any], tools: Sequence[Callable[..., Any]]) -> list[Any]:
    """Texts in place of blocks of text, and calls of examples without the nulls of other rows' arguments.

    Args:
        tools: a null argument is kept where the parameter of its tool may be null.
    """
    with_calls = any(message.get("tool_calls") for prompt in prompts for message in messages_of(prompt))
    schemas = [get_json_schema(tool) for tool in tools] if with_calls else []
    return [
        with_texts([restored(dict(message), schemas) | {"content": message.get("content")} for message in prompt])
        if messages_of(prompt)
        else prompt
        for prompt in prompts
    ]


def messages_of(prompt: Any) -> Sequence[Mapping[str, Any]]:
    return () if isinstance(prompt, str) else prompt
