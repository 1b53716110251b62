"""BM25 over a corpus on disk, with `bm25s`. Knows words and documents: no tokens of a model."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .corpus import DocumentStore, in_its_place_when_whole, read_corpus, write_digest
from .retriever import Document
from .words import split_words

SCORES = "bm25"  # the folder of the scores inside an index


class BM25Retriever:
    """Finds documents by their words; the index is on disk and memory-mapped, so processes share it.

    Titles count as text. Words are those of `split_words`: any script, no stop words, no stemming, so that names stay
    names. A document that shares no word with the query is not found.

    Example:
        retriever = BM25Retriever.build("corpus.jsonl", "index")   # once
        retriever = BM25Retriever("index")                         # from then on
        retriever.search(["capital of Norway"], k=3)[0][0].title   # "Oslo"

    Args:
        folder: an index that `build` has written.

    Raises:
        ValueError: there is no index in the folder, it cannot be read, or it is of other documents.
        ImportError: bm25s is not installed.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        if not (folder / SCORES).is_dir():
            raise ValueError(
                f"{folder} holds no BM25 index; write one with BM25Retriever.build(corpus, {str(folder)!r})"
            )
        self.documents = DocumentStore(folder, SCORES)
        bm25s = load_bm25s()
        try:
            self.scores = bm25s.BM25.load(folder / SCORES, mmap=True, show_progress=False)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"the BM25 index in {folder} cannot be read ({error}); build it again") from error

    @classmethod
    def build(cls, corpus: str | Path | Iterable[Mapping[str, Any]], folder: str | Path) -> "BM25Retriever":
        """Index a JSONL file, or rows, with `id`, `title` and `text`. Rows are read one at a time; only ids are kept.

        Raises:
            ValueError: a row has no text (with its line), or there are no rows.
        """
        bm25s, folder = load_bm25s(), Path(folder)
        rows = read_corpus(corpus) if isinstance(corpus, str | Path) else corpus
        with in_its_place_when_whole(folder) as new:
            vocabulary: dict[str, int] = {"": 0}  # bm25s wants a word for documents that have none
            ids = []
            for row in DocumentStore.stream(rows, new):
                words = split_words(f"{row['title']} {row['text']}")
                ids.append(array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in words]))
            scores = bm25s.BM25()
            scores.index((ids, vocabulary), show_progress=False)
            scores.save(new / SCORES, show_progress=False)
            write_digest(new, SCORES)
        return cls(folder)

    def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        return [self._best(query, min(k, len(self.documents))) for query in queries]

    def _best(self, query: str, k: int) -> list[Document]:
        known = self.scores.vocab_dict
        ids = [known[word] for word in split_words(query) if word in known]
        if not ids:
            return []
        scores = self.scores.get_scores_from_ids(ids)
        best = np.argpartition(-scores, k - 1)[:k]
        best = best[np.lexsort((best, -scores[best]))]  # of equal scores the earlier document first
        return [self.documents.document(number, score=float(scores[number])) for number in best if scores[number] > 0]


def load_bm25s() -> Any:
    try:
        return import_module("bm25s")
    except ImportError as error:
        raise ImportError("BM25Retriever needs bm25s: pip install 'envmask_trl[search]'") from error
