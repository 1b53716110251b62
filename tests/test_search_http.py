"""The client of a retrieval server, against a real one in which failures are injected."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from envmask_trl import CallStatus, Document, HTTPRetriever, SearchTool, ToolCall, ToolRunner
from envmask_trl.rollout.search.http import RetrievalFailed
from envmask_trl.rollout.tools import ToolJob


class Server(ThreadingHTTPServer):
    """Answers like Search-R1's; before that it plays its `faults`, one for each request."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *faults):
        self.faults, self.requests = list(faults), []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/retrieve"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(asked)
        match self.server.faults.pop(0) if self.server.faults else None:
            case None:
                self.send(200, {"result": [answers(query, asked) for query in asked["queries"]]})
            case int(status):
                self.send(status, {"detail": "no"})
            case "hang":
                time.sleep(1.0)
            case "drip":  # each read is in time, the answer is never whole
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
                for _ in range(12):
                    self.wfile.write(b" ")
                    time.sleep(0.05)
            case "break":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
            case ("redirect", int(status)):
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
            case bytes(body):
                self.send(200, body)

    def do_GET(self):
        self.send(200, {"result": [[{"document": {"contents": "of a GET without queries"}}]]})

    def send(self, status, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def answers(query, asked):
    found = [{"id": str(i), "contents": f'"{query} {i}"\nText {i} of\n{query}.'} for i in range(asked["topk"])]
    return [{"document": document, "score": 1.0 / (i + 1)} for i, document in enumerate(found)]


@pytest.fixture
def serve():
    servers = []

    def start(*faults):
        servers.append(Server(*faults))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def client(server, **options):
    return HTTPRetriever(server.url, **({"timeout_s": 0.3, "backoff_s": 0.01} | options))


def test_one_request_asks_for_all_queries(serve):
    server = serve()
    found = client(server).search(["Oslo", "東京"], 2)
    assert server.requests == [{"queries": ["Oslo", "東京"], "topk": 2, "return_scores": True}]
    assert found[1][0] == Document("0", '"東京 0"', "Text 0 of\n東京.", 1.0) and [len(one) for one in found] == [2, 2]
    assert client(server).search([], 2) == [] and len(server.requests) == 1


@pytest.mark.parametrize("fault", [503, 429, "hang", "break", b"no json", b'{"result": []}', b'{"result": [7]}', b"[]"])
def test_a_fault_is_tried_again(serve, fault):
    server = serve(fault, fault)
    assert client(server).search(["Oslo"], 1)[0][0].title == '"Oslo 0"'
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "said", "tries"),
    [
        (500, "it answered with status 500", 3),
        (404, "it answered with status 404", 1),
        (("redirect", 302), "it answered with status 302, which sends to /elsewhere; give that url", 1),
        (("redirect", 307), "it answered with status 307, which sends to /elsewhere; give that url", 1),
        (b'{"result": [[{"document": {"text": "a"}, "score": 1%s}]]}' % (b"0" * 400), r"cannot be read \(Overflow", 3),
        ("hang", r"it gave no answer within 0\.3 s", 3),
        ("break", "the connection broke", 3),
        ("drip", r"it gave no answer within 0\.3 s", 3),
        (b"[" * 50_000, r"its answer cannot be read \(RecursionError\)", 3),
        (b'{"result": [[{"document": {"text": null}}]]}', r"its answer cannot be read \(TypeError\)", 3),
        (b'{"result": [["a text"]]}', r"its answer cannot be read \(AttributeError\)", 3),
        (b'{"result": {"0": []}}', r"its answer cannot be read|it answered", 3),
        (b"no json", r"its answer cannot be read \(JSONDecodeError\)", 3),
        (b'{"result": [[], []]}', "it answered 2 of 1 queries", 3),
    ],
)
def test_a_fault_that_stays_says_what_it_was(serve, fault, said, tries):
    server = serve(*[fault] * 5)
    with pytest.raises(RetrievalFailed, match=f"the search server failed, {tries} tries: .*{said}"):
        client(server).search(["Oslo"], 1)
    assert len(server.requests) == tries


def test_no_server_at_all_is_told_to_the_model_and_ends_nothing(serve):
    server = serve()
    retriever = client(server)
    server.shutdown()
    server.server_close()
    tool = SearchTool(retriever).search
    jobs = [ToolJob((ToolCall("0", "search", {"query": "Oslo"}),), {"search": tool})] * 3
    results = ToolRunner().run(jobs)
    assert [result.status for (result,) in results] == [CallStatus.ERROR] * 3
    assert results[0][0].content == ("Error: RetrievalFailed: the search server failed, 3 tries: it cannot be reached")


def test_documents_without_scores_and_with_titles_of_their_own_are_read(serve):
    body = {"result": [[{"id": 7, "title": "Oslo", "text": "In Norway."}, {"contents": "Lima"}]]}
    found = client(serve(json.dumps(body).encode())).search(["x"], 5)
    assert found == [[Document("7", "Oslo", "In Norway.", 0.0), Document("", "Lima", "", 0.0)]]


@pytest.mark.parametrize(
    "options",
    [
        *({"url": url} for url in ("localhost:8000", "http://", "http://a b/", None, 7)),
        *({"timeout_s": seconds} for seconds in (0, "1", None, float("nan"))),
        *({"retries": tries} for tries in (-1, "2", 1.5)),
        *({"backoff_s": seconds} for seconds in (-1, None)),
    ],
    ids=str,
)
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="HTTPRetriever has "):
        HTTPRetriever(**({"url": "http://x/retrieve"} | options))
