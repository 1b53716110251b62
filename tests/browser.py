"""A headless Chromium for tests, driven over its DevTools pipe. Knows the protocol: no pages, no rollouts.

The pipe is two file descriptors, 3 to the browser and 4 from it, and JSON messages that end in a zero byte, so nothing
has to be installed to speak it.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One tab.

    Example:
        with Browser() as tab:
            tab.open(path)
            tab.click("#theme")
            tab.evaluate("document.title")
    """

    def __init__(self, *, width: int = 1400, height: int = 900) -> None:
        assert CHROMIUM is not None, "there is no chromium on PATH"
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.events: list[dict] = []
        self.number = 0
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", f"--window-size={width},{height}"]
        from_here, self.write_end = os.pipe()
        self.read_end, to_here = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (from_here, to_here)]  # neither is 3 or 4
        command = [sys.executable, "-S", "-c", LAUNCH, *map(str, ends), CHROMIUM, *flags]
        self.process = subprocess.Popen(command, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (from_here, to_here, *ends):
            os.close(end)
        self.replies = os.fdopen(self.read_end, "rb")
        self.session = ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        os.close(self.write_end)
        self.replies.close()
        self.profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict:
        """Send a command and wait for its reply; what else arrives meanwhile goes to `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self.number:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]
            self.events.append(reply)

    def _read(self) -> dict:
        text = bytearray()
        while (byte := self.replies.read(1)) != b"\0":
            assert byte, "the browser has closed its pipe"
            text += byte
        return json.loads(text)

    def evaluate(self, expression: str) -> Any:
        """The JSON value of an expression in the page; a promise is waited for."""
        reply = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"after {seconds} s this is still false: {expression}"
            time.sleep(0.02)

    def open(self, path: Path, *, until: str) -> None:
        """Load a file, and wait until an expression is true in it."""
        self.send("Page.navigate", url=path.absolute().as_uri())
        self.wait_for(f"location.protocol === 'file:' && {until}")

    @contextmanager
    def inside_frame(self) -> Iterator[None]:
        """Evaluate inside the page's sandboxed frame, which is a process of its own, instead of around it."""
        page = self.session
        self.evaluate("1")
        attached = [event["params"] for event in self.events if event["method"] == "Target.attachedToTarget"]
        self.session = [each["sessionId"] for each in attached if each["targetInfo"]["type"] == "iframe"][-1]
        yield
        self.session = page

    def hover(self, selector: str) -> tuple[float, float]:
        """Move the real pointer to the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.evaluate(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({box})")
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        x, y = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        """Real key strokes, named as in `KeyboardEvent.key`."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **VIRTUAL_KEYS.get(key, {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **VIRTUAL_KEYS.get(key, {}))

    def complaints(self) -> list[str]:
        """What the page threw, logged as an error, or was refused, so far."""
        self.evaluate("1")  # what was said before has arrived when this has
        said = [event for event in self.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        return [json.dumps(event["params"]) for event in said]

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        self.evaluate("1")
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]


VIRTUAL_KEYS = {"Tab": {"windowsVirtualKeyCode": 9}, "Escape": {"windowsVirtualKeyCode": 27}}
