"""What kind of callable a reward function is. Knows functions, partials and objects with a call."""

import functools
import inspect
from typing import Any


def name_of(function: Any) -> str:
    """Its name, that of what a `partial` calls, or else of its class."""
    function = without_partial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def is_async(function: Any) -> bool:
    """Whether calling it returns a coroutine."""
    function = without_partial(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
