"""From found documents to the text that the model reads, within a budget of tokens. Knows documents and texts.

Doc 1(Title: Oslo) Oslo is the capital of Norway. It lies [cut: tail of 120 tokens]
Doc 2(Title: Bergen) Bergen is a city in Norway.
"""

from collections.abc import Sequence

from ..fitting import Offsets, cut_mark, cut_text, even_limits
from ..tool_values import to_text
from .retriever import Document

ENOUGH_CHARACTERS_PER_TOKEN = 64  # longer tokens exist only for runs of one character
NOTHING_FOUND = "No documents were found."
LEAST_TOKENS = 8  # of a document that is cut, beside the mark; where less would be left, the last document is left out


def written_out(documents: Sequence[Document], *, max_tokens: int | None = None, offsets: Offsets | None = None) -> str:
    """One line per document, as Search-R1 writes them; a document that is too long is cut inside, with a mark.

    White space inside a document becomes one space, so that none can begin a line that looks like another document.
    Long documents are cut to equal shares, short ones are left whole; the last ones are left out where a share would
    be no more than a mark.

    Args:
        documents: best first.
        max_tokens: most tokens of the whole text; None is no limit.
        offsets: a tokenizer's offsets, needed with `max_tokens`.
    """
    texts = [to_text(f"Doc {n}(Title: {found.title}) {found.text}") for n, found in enumerate(documents, 1)]
    lines = [" ".join(text.split()) for text in texts]
    if not lines:
        return NOTHING_FOUND
    if max_tokens is None:
        return "\n".join(lines)
    assert offsets is not None, "a budget in tokens needs the offsets of a tokenizer"
    least = len(offsets(cut_mark("tail", "over 100000"))) + LEAST_TOKENS
    budget, enough = max_tokens, max_tokens * ENOUGH_CHARACTERS_PER_TOKEN  # of a page of megabytes
    while True:
        sizes = [len(offsets(line[:enough] + "\n")) for line in lines]
        limits = even_limits(sizes, budget)
        if len(lines) > 1 and any(limit < min(least, size) for limit, size in zip(limits, sizes, strict=True)):
            lines.pop()
            continue
        text = "\n".join(
            cut_text(line, max(limit, 1), "tail", offsets) for line, limit in zip(lines, limits, strict=True)
        )
        excess = len(offsets(text)) - max_tokens
        if excess <= 0 or budget <= 0:
            return text
        budget -= excess  # tokens may merge or part where lines meet
