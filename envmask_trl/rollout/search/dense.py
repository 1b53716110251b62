"""Dense retrieval: any encoder of texts, and FAISS. Knows vectors and documents: no tokens of a model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .corpus import DocumentStore, in_its_place_when_whole, read_corpus, write_digest
from .retriever import Document

VECTORS, NAME = "vectors.faiss", "vectors"
Encode = Callable[[list[str]], Any]  # N texts -> [N, D] numbers, as `SentenceTransformer(...).encode` does


class DenseRetriever:
    """Finds documents by the cosine between vectors of texts.

    Example:
        encode = SentenceTransformer("intfloat/e5-base-v2").encode
        retriever = DenseRetriever.build("corpus.jsonl", "index", encode=encode, document_prefix="passage: ",
                                         query_prefix="query: ")
        retriever = DenseRetriever("index", encode=encode, query_prefix="query: ")

    Args:
        folder: an index that `build` has written.
        encode: from N texts to [N, D] vectors of any length; the same one as for building.
        query_prefix: put before each query, as some encoders want it.

    Raises:
        ValueError: there is no index in the folder, it cannot be read or is of other documents; or the encoder's
            vectors have another size than the index's, or no finite numbers.
        ImportError: faiss is not installed.
    """

    def __init__(self, folder: str | Path, *, encode: Encode, query_prefix: str = ""):
        path = Path(folder) / VECTORS
        if not path.is_file():
            raise ValueError(f"{folder} holds no dense index; write one with DenseRetriever.build(corpus, '{folder}')")
        faiss = load_faiss()
        self.encode = encode
        self.query_prefix = query_prefix
        self.documents = DocumentStore(Path(folder), NAME)
        try:
            self.index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise ValueError(f"the dense index in {folder} cannot be read; build it again") from error

    @classmethod
    def build(
        cls,
        corpus: str | Path | Iterable[Mapping[str, Any]],
        folder: str | Path,
        *,
        encode: Encode,
        query_prefix: str = "",
        document_prefix: str = "",
        factory: str = "Flat",
        batch_size: int = 1024,
    ) -> "DenseRetriever":
        """Index a JSONL file, or rows, with `id`, `title` and `text`, which are read and encoded batch by batch.

        Args:
            factory: FAISS's description of an index that needs no training, such as "Flat" (exact) or "HNSW32".

        Raises:
            ValueError: a row has no text, there are no rows, or the index that `factory` describes must be trained.
        """
        faiss, folder = load_faiss(), Path(folder)
        rows = read_corpus(corpus) if isinstance(corpus, str | Path) else corpus
        with in_its_place_when_whole(folder) as new:
            documents, index = DocumentStore.stream(rows, new), None
            while batch := list(islice(documents, batch_size)):
                texts = [f"{document_prefix}{row['title']}\n{row['text']}" for row in batch]
                vectors = unit_vectors(encode(texts), len(texts))
                if index is None:
                    index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
                    if not index.is_trained:
                        raise ValueError(f"a FAISS index {factory!r} must be trained; use 'Flat' or 'HNSW32'")
                index.add(vectors)
            faiss.write_index(index, str(new / VECTORS))
            write_digest(new, NAME)
        return cls(folder, encode=encode, query_prefix=query_prefix)

    def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        if not queries:
            return []
        vectors = unit_vectors(self.encode([self.query_prefix + query for query in queries]), len(queries))
        if vectors.shape[1] != self.index.d:
            raise ValueError(
                f"the encoder gives vectors of {vectors.shape[1]} numbers but the index has {self.index.d}; "
                "use the encoder that the index was built with"
            )
        scores, numbers = self.index.search(vectors, min(k, len(self.documents)))
        return [
            [self.documents.document(number, score=score) for number, score in zip(*row, strict=True) if number >= 0]
            for row in zip(numbers.tolist(), scores.tolist(), strict=True)
        ]


def unit_vectors(vectors: Any, count: int) -> np.ndarray:
    """[N, D] in float32, each of length 1; a vector of zeros stays one."""
    array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2 or len(array) != count:
        raise ValueError(
            f"the encoder returned an array of shape {array.shape} for {count} texts, expected [{count}, D]"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"the encoder returned vectors for {count} texts that hold no finite numbers")
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    return array / np.where(lengths > 0, lengths, 1.0)


def load_faiss() -> Any:
    try:
        return import_module("faiss")
    except ImportError as error:
        raise ImportError("DenseRetriever needs FAISS: pip install 'envmask_trl[dense]'") from error
