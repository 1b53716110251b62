"""A local OpenAI-compatible server that answers as it is told, and fails in every way a server can. Holds no tests."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from envmask_trl import Judge

from .rewarded import as_trainer, play
from .tiny import answer

RUBRIC = "It is polite."


def nonce_in(request: dict) -> str:
    return re.search(r"the number ([0-9a-f]{16})", request["messages"][0]["content"]).group(1)


def candidate_in(request: dict) -> str:
    """The candidate's text as the judge reads it."""
    nonce = nonce_in(request)
    (data,) = re.findall(rf"<candidate {nonce}>(.*)</candidate {nonce}>", request["messages"][1]["content"])
    return json.loads(data)


def verdict(request: dict, score=8, **changes) -> str:
    return json.dumps({"nonce": nonce_in(request), "reason": "because", "score": score} | changes)


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible server: each request is answered by the next of `plan`, the last one for ever."""

    daemon_threads = True

    def __init__(self, *plan):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan, self.requests, self.busy, self.most_busy, self.lock = list(plan), [], 0, 0, threading.Lock()
        self.leave = threading.Event()

    def handle_error(self, request, client_address):
        """A client that gave up is part of the plan."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append(request)
            server.busy += 1
            server.most_busy = max(server.most_busy, server.busy)
            step = server.plan.pop(0) if len(server.plan) > 1 else server.plan[0]
        try:
            step(self, request)
        finally:
            with server.lock:
                server.busy -= 1

    def send(self, status: int, body: bytes, **headers: str):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def says(text):
    """A step that answers with a completion; `text` may look at the request."""

    def step(handler, request):
        content = text(request) if callable(text) else text
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": request["model"]}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        handler.send(200, json.dumps(body | {"choices": [choice]}).encode())

    return step


def fails(status: int, **headers):
    return lambda handler, request: handler.send(status, b'{"error": {"message": "no"}}', **headers)


def hangs(handler, request):
    handler.server.leave.wait(20)


def drips(handler, request):
    """A byte now and then: each read is in time, the answer is never whole."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    while not handler.server.leave.wait(0.05):
        handler.wfile.write(b" ")


def breaks(handler, request):
    handler.send(200, b'{"id": "1", "choices": [{"mess')


def drops(handler, request):
    handler.connection.close()


@contextmanager
def endpoint(*plan):
    with Endpoint(*plan) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.leave.set()
            server.shutdown()
            thread.join()


def judge_at(server, **options) -> Judge:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    return Judge(RUBRIC, model="judge-1", base_url=url, **({"timeout_s": 20.0, "retries": 2} | options))


def judged(server, *texts, reference=None, **options) -> list[float | None]:
    columns = {"gold": reference} if reference else {}
    return judge_at(server, **options)(**as_trainer(play(*[[answer(text)] for text in texts]), **columns))
