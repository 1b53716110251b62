"""A client of the retrieval server that Search-R1 users run. Knows HTTP and documents: no index, no tokens.

POST /retrieve   {"queries": ["capital of Norway"], "topk": 3, "return_scores": true}
200              {"result": [[{"document": {"id": "17", "contents": "Oslo\\nOslo is ..."}, "score": 8.3}, ...]]}
"""

import json
import time
from collections.abc import Sequence
from http.client import HTTPException
from math import inf
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from .retriever import Document

PART = 65_536  # bytes of an answer that are read at once
TRIED_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that another try may cure


class NoRedirects(HTTPRedirectHandler):
    """Followed, a POST would become a GET without the queries."""

    def redirect_request(self, *_: Any) -> None:
        return None


class RetrievalFailed(RuntimeError):
    """The server gave no answer that can be used. As a tool's error it is told to the model; no rollout ends by it."""


class HTTPRetriever:
    """Asks a retrieval server for all queries of a round in one request.

    Example:
        HTTPRetriever("http://127.0.0.1:8000/retrieve").search(["capital of Norway"], k=3)

    Args:
        url: of the server's `retrieve`.
        timeout_s: seconds until a try without an answer is given up; one whose answer comes in parts may take twice as
            many.
        retries: further tries after no connection, no answer in time, an unreadable answer or a status such as 503.
        backoff_s: seconds before the second try; twice as many before each further one.

    Raises:
        RetrievalFailed: from `search`, when no try was answered.
    """

    def __init__(self, url: str, *, timeout_s: float = 8.0, retries: int = 2, backoff_s: float = 0.5):
        seconds = all(isinstance(value, int | float) and 0 <= value < inf for value in (timeout_s, backoff_s))
        if not is_url(url) or not seconds or not timeout_s or not isinstance(retries, int) or retries < 0:
            raise ValueError(
                f"HTTPRetriever has url={url!r}, timeout_s={timeout_s!r}, retries={retries!r} and "
                f"backoff_s={backoff_s!r}; expected http(s)://..., more than 0 seconds, and 0 or more of the others"
            )
        self.url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self.backoff_s = backoff_s

    def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        if not queries:
            return []
        body = json.dumps({"queries": list(queries), "topk": k, "return_scores": True}).encode()
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.backoff_s * 2 ** (attempt - 1))
            try:
                return read_answer(self._post(body), len(queries), k)
            except HTTPError as error:
                reason = f"it answered with status {error.code}"
                if 300 <= error.code < 400:
                    reason += f", which sends to {error.headers.get('Location')}; give that url"
                if error.code not in TRIED_AGAIN:
                    break
            except TimeoutError:
                reason = f"it gave no answer within {self.timeout_s:g} s"
            except URLError as error:
                late = isinstance(error.reason, TimeoutError)
                reason = f"it gave no answer within {self.timeout_s:g} s" if late else "it cannot be reached"
            except (OSError, HTTPException):
                reason = "the connection broke"
            except ValueError as error:
                reason = str(error)
        raise RetrievalFailed(f"the search server failed, {attempt + 1} tries: {reason}")

    def _post(self, body: bytes) -> bytes:
        """The whole answer; a server that sends a byte now and then is given up, too, though each read is in time."""
        request = Request(self.url, data=body, headers={"Content-Type": "application/json"})
        deadline_s, parts = time.monotonic() + self.timeout_s, []
        with build_opener(NoRedirects).open(request, timeout=self.timeout_s) as response:
            while part := response.read1(PART):
                parts.append(part)
                if time.monotonic() > deadline_s:
                    raise TimeoutError
            if response.length:
                raise ConnectionError("the answer ended before its length")
        return b"".join(parts)


def is_url(url: object) -> bool:
    if not isinstance(url, str) or any(character.isspace() for character in url):
        return False
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def read_answer(body: bytes, num_queries: int, k: int) -> list[list[Document]]:
    """The documents of each query; ValueError where the answer has another form."""
    try:
        found = json.loads(body)["result"]
        documents = [[read_document(item) for item in items[:k]] for items in found]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its answer cannot be read ({type(error).__name__})") from error
    if len(documents) != num_queries:
        raise ValueError(f"it answered {len(documents)} of {num_queries} queries")
    return documents


def read_document(item: dict[str, Any]) -> Document:
    """One entry of the answer; a server that was not asked for scores sends the documents bare."""
    document = item.get("document", item)
    if isinstance(contents := document.get("contents"), str):
        title, _, text = contents.partition("\n")
    else:
        title, text = document.get("title") or "", document["text"]
        if text is None:
            raise TypeError("a document without a text")
    return Document(str(document.get("id", "")), str(title), str(text), float(item.get("score") or 0.0))
