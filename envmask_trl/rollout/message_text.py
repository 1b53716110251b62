"""One text in place of a message's blocks of text. Knows messages: no templates, no tokens.

[{"type": "text", "text": "Play"}, {"type": "text", "text": "."}]  ->  "Play."

Many templates print a content only if it is a string, and leave out blocks without a word.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def with_texts(prompt: Any) -> Any:
    """The messages of a prompt, each content a text or None; what is no list of messages stays as it is.

    Raises:
        ValueError: a content is neither a text nor blocks of text.
    """
    return [with_text(message) for message in prompt] if isinstance(prompt, (list, tuple)) else prompt


def with_text(message: Any) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if content is None or isinstance(content, str):
        return message
    return {**message, "content": joined_text(f"a message of the role {message.get('role')!r}", content)}


def joined_text(owner: str, content: Any) -> str:
    """The text of a content that is a text or blocks of text; `owner` is named if it is neither."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, Sequence) else [content]
    texts = [block_text(block) for block in blocks]
    for block, text in zip(blocks, texts, strict=True):
        if not isinstance(text, str):
            raise ValueError(
                f"{owner} holds {str(block)[:60]!r}, expected a text or blocks such as "
                "{'type': 'text', 'text': '...'}; images are not supported yet, and data is written as JSON text"
            )
    return "".join(map(str, texts))


def block_text(block: Any) -> Any:
    """The text of a block of the type "text", or "input_text" and "output_text" as in OpenAI's API; else None."""
    is_text = isinstance(block, Mapping) and str(block.get("type") or "text").endswith("text")
    return block.get("text") if is_text else None
