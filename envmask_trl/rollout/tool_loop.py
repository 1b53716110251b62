"""One event loop for the async tools of all rollouts, in a thread of its own. Knows awaitables: no tools, no calls."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock, Thread
from time import perf_counter
from typing import Any

logger = logging.getLogger(__name__)


class LoopKeeper:
    """One event loop for all async tools, started when it is needed and replaced when a tool blocks it.

    Args:
        grace_s: seconds that a loop has to answer a ping, before the next awaitable goes to a new one.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lock = Lock()
        self._loop: ToolLoop | None = None

    def wait(self, awaitable: Awaitable[Any], deadline_s: float) -> Any:
        with self._lock:
            if self._loop is not None and not self._loop.answers_within(self._grace_s):
                logger.warning("an async tool blocks its event loop; the next calls run on a new one")
                self._loop.stop(after_s=max(deadline_s - perf_counter(), 0.0))  # its other calls may still end
                self._loop = None
            if self._loop is None:
                self._loop = ToolLoop()
            loop = self._loop
        return loop.wait(awaitable, deadline_s)

    def ping(self) -> None:
        if (loop := self._loop) is not None:
            loop.ping()

    def close(self) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.stop()
            self._loop = None


class ToolLoop:
    """Runs awaitables for other threads; works where another event loop is already running, as in Jupyter.

    Example:
        loop = ToolLoop()
        loop.wait(fetch("https://example.org"), deadline_s=perf_counter() + 30)
        loop.stop()
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonExecutor())
        self._stopping = False
        self._pong = Event()
        self._pong.set()
        self._thread = Thread(target=self._serve, daemon=True, name="tool-loop")
        self._thread.start()

    def wait(self, awaitable: Awaitable[Any], deadline_s: float) -> Any:
        """The awaitable's value or exception, awaited from a thread other than the loop's.

        Args:
            deadline_s: when the awaitable is cancelled, on the clock of `perf_counter`.
        """
        value, error = asyncio.run_coroutine_threadsafe(settle(awaitable, deadline_s), self._loop).result()
        if error is not None:
            raise error
        return value

    def ping(self) -> None:
        """Ask the loop for a sign of life, without waiting for it."""
        self._pong.clear()
        with suppress(RuntimeError):  # already closed: there will be no pong
            self._loop.call_soon_threadsafe(self._pong.set)

    def answers_within(self, seconds: float) -> bool:
        """Whether the last ping was answered; false also in a process that was forked, which has no such thread."""
        return self._thread.is_alive() and self._pong.wait(seconds)

    def stop(self, after_s: float = 0.0) -> None:
        """Cancel what is still running after `after_s` seconds, and close. Does not wait for any of it."""
        self._stopping = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, after_s, self._loop.stop)

    def _serve(self) -> None:
        while not self._stopping:
            with suppress(BaseException):  # SystemExit in a task that a tool left behind would end the loop
                self._loop.run_forever()
        with suppress(BaseException):
            self._loop.run_until_complete(cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def settle(awaitable: Awaitable[Any], deadline_s: float) -> tuple[Any, BaseException | None]:
    """(value, None) or (None, what was raised): SystemExit as an exception would end the loop."""
    left_s = deadline_s - perf_counter()
    try:
        if left_s <= 0:  # the loop was blocked for so long: what was given up must not be run late
            raise TimeoutError
        async with asyncio.timeout(left_s):
            return await awaitable, None
    except BaseException as error:
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        return None, error


async def cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class DaemonExecutor(ThreadPoolExecutor):
    """What `asyncio.to_thread` uses in a tool: one daemon thread per call, so that no hung one delays the exit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=work, daemon=True, name="tool-to-thread").start()
        return future
