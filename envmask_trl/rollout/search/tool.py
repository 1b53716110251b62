"""The `search` tool: one question of the model, answered with documents. Knows a retriever: no loop, no template."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...rewards.values import is_whole
from ..batched_tools import BatchedTool
from ..content_guard import ContentGuard
from .documents import written_out
from .retriever import Retriever


class SearchTool(BatchedTool):
    """Has the tool `search`, for chat templates with tools and for `TagProtocol`.

    All queries of a round, of all rollouts, go to the retriever in one call, each distinct one once. What the retriever
    raises is told to the model.

    Example:
        search = SearchTool(BM25Retriever("index"), k=3, max_tokens=400, tokenizer=tokenizer).search
        run_rollouts(prompts, tokenizer=tokenizer, sampler=sampler, tools=[search])
        search("capital of Norway")   # "Doc 1(Title: Oslo) Oslo is the capital of Norway.\\nDoc 2(Title: ..."

    Args:
        retriever: see `Retriever`.
        k: most documents for a query.
        max_tokens: most tokens of one result, shared fairly by its documents; None is no limit.
        tokenizer: counts them.

    Raises:
        ValueError: `max_tokens` without a tokenizer, or a number below 1.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        k: int = 3,
        max_tokens: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ):
        if not all(is_whole(most) and most >= 1 for most in (k, 1 if max_tokens is None else max_tokens)):
            raise ValueError(
                f"SearchTool has k={k!r} and max_tokens={max_tokens!r}, expected whole numbers, at least 1 of each"
            )
        if max_tokens is not None and tokenizer is None:
            raise ValueError(
                f"SearchTool has max_tokens={max_tokens} but no tokenizer that counts them; pass tokenizer="
            )
        self.retriever = retriever
        self.k = k
        self.max_tokens = max_tokens
        self.offsets = None if tokenizer is None else ContentGuard(tokenizer).offsets

    def search(self, query: str) -> str:
        """Search for documents that help to answer the question.

        Args:
            query: What to search for.
        """
        (answer,) = self.answer_all([{"query": query}])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer_all(self, arguments: Sequence[dict[str, Any]]) -> list[Any]:
        """The text for each query, or for one that is none the error that the model is told."""
        queries = [call["query"] for call in arguments]
        wanted = list(dict.fromkeys(query for query in queries if is_query(query)))
        results = self.retriever.search(wanted, self.k) if wanted else []
        texts = {query: self._text(found) for query, found in zip(wanted, results, strict=True)}
        return [texts[query] if is_query(query) else ValueError(NO_QUERY) for query in queries]

    def _text(self, documents: Sequence[Any]) -> str:
        return written_out(documents[: self.k], max_tokens=self.max_tokens, offsets=self.offsets)


NO_QUERY = "the query must be a text that is not empty"


def is_query(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
