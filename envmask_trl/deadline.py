"""Work that is given up when it takes too long. Knows threads: not what the work is."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


def within(deadline_s: float, work: Callable[[], Value]) -> Value:
    """What `work` returns or raises, if that is soon enough.

    HTTP clients count a time-out anew for every read, so a server that sends a byte now and then is waited for without
    end. The thread that does is left behind.

    Example:
        within(5.0, lambda: urlopen(url).read())

    Raises:
        TimeoutError: nothing came in `deadline_s` seconds.
    """
    done: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

    def run() -> None:
        try:
            done.put((True, work()))
        except BaseException as error:
            done.put((False, error))

    Thread(target=run, daemon=True).start()
    try:
        succeeded, value = done.get(timeout=deadline_s)
    except Empty:
        raise TimeoutError(f"nothing came within {deadline_s:g} s") from None
    if not succeeded:
        raise value
    return cast(Value, value)
