"""What the search tool asks of a retriever. Knows texts: no index, no tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One found document.

    Example:
        Document(id="17", title="Oslo", text="Oslo is the capital of Norway.", score=8.3)
    """

    id: str
    title: str
    text: str
    score: float  # higher is better; scores of different retrievers cannot be compared


class Retriever(Protocol):
    """Finds documents for all queries of a round at once: `result[i]` answers `queries[i]`, best first, at most `k`."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Document]]: ...
