"""Are the tools, rewards and environments that a trainer was given what it can call? Knows signatures: no data."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from ..rewards.functions import name_of

TAKES_ANY = inspect.Parameter.VAR_KEYWORD
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_tools(tools: Any) -> None:
    """Raise ValueError on tools that the model could not be shown, or that share a name.

    Example:
        check_tools([weather, "calculator"])  # tools[1] is 'calculator', expected a function with ..
    """
    if tools is None:
        return
    if not isinstance(tools, (list, tuple)):
        raise ValueError(f"tools is {described(tools)}, expected a list of functions; write tools=[...]")
    for index, tool in enumerate(tools):
        if not callable(tool) or isinstance(tool, type):
            raise ValueError(
                f"tools[{index}] is {described(tool)}, expected a function with type hints and a docstring; its schema "
                "is made from them"
            )
        check_schema(f"tools[{index}]", tool)
    check_names([name_of(tool) for tool in tools])


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError on tools of one name: the model's call would reach one of them, whichever it meant."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"several tools are named {', '.join(twice)}, and a call could reach only one; rename or remove"
        )


def check_schema(where: str, tool: Callable[..., Any]) -> None:
    """Raise ValueError where no schema can be made from a function's type hints and docstring."""
    try:
        get_json_schema(tool)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ValueError(
            f"{where}, {name_of(tool)}: {error}; a tool needs type hints and a docstring with an `Args:` line for "
            "each argument"
        ) from error


def check_environment_factory(factory: Any) -> None:
    """Raise ValueError on what makes no environment when it is called without arguments.

    Example:
        check_environment_factory(Maze(size=3))  # environment_factory is a Maze, expected a class or function ..
    """
    named = {f"environment_factory[{name!r}]": each for name, each in factory.items()} if is_named(factory) else {}
    if is_named(factory) and not factory:
        raise ValueError("environment_factory is an empty dict, expected at least one environment's class or function")
    for what, each in (named or {"environment_factory": factory}).items():
        if each is None and not named:
            return
        if not callable(each):
            remedy = "pass its class" if hasattr(each, "reset") else "write environment_factory=MyEnvironment"
            raise ValueError(
                f"{what} is {described(each)}, expected a class or function that makes an environment; {remedy}"
            )
        try:
            inspect.signature(each).bind()
        except TypeError as error:
            raise ValueError(
                f"{what}, {name_of(each)}, is called without arguments to make an environment, but {error}; give them "
                f"defaults, or pass functools.partial({name_of(each)}, ...)"
            ) from None
        except ValueError:  # some callables have no signature to read
            pass


def is_named(factory: Any) -> bool:
    """Whether rows choose among several environments by name."""
    return isinstance(factory, Mapping)


def check_reward_function(function: Any, *, given: Collection[str], columns: Sequence[str] | None) -> None:
    """Raise ValueError where calling a reward function with the keywords that it will get would fail.

    Args:
        given: what every reward function gets.
        columns: of the data set, which stand beside them; None if they are not known before they are read.
    """
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # some callables have no signature to read
        return
    keywords = {*given, *(columns or ())}
    by_name = {parameter.name for parameter in parameters if parameter.kind in BY_NAME}
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (TAKES_ANY, p.VAR_POSITIONAL)]
    missing = [name for name in required if name not in keywords or name not in by_name]
    if missing and columns is not None:
        raise ValueError(
            f"the reward function {name_of(function)!r} asks for {', '.join(missing)}, which is neither a column of "
            f"the dataset ({', '.join(columns)}) nor one of {', '.join(sorted(given))}; rename the argument or column"
        )
    check_accepts(f"the reward function {name_of(function)!r}", function, sorted(keywords))


def check_accepts(what: str, function: Callable[..., Any], keywords: Sequence[str]) -> None:
    """Raise ValueError where a function without `**kwargs` would be called with a keyword that it does not have."""
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    by_name = {parameter.name for parameter in parameters if parameter.kind in BY_NAME}
    unknown = [name for name in keywords if name not in by_name]
    if unknown and not any(parameter.kind is TAKES_ANY for parameter in parameters):
        raise ValueError(
            f"{what} cannot take {', '.join(unknown)}, which it gets by name; add **kwargs to its arguments"
        )


def described(value: Any) -> str:
    """`'weather'`, `the function weather`, `the class Weather` or `a dict`."""
    if isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"the function {name_of(value)}" if callable(value) else f"a {type(value).__name__}"
