"""What a tool may know of the rollout that calls it. Knows functions and their parameters: no tokens, no threads.

the user writes      def note(text: str, rollout: RolloutContext) -> str
the model is shown   note(text: str)
the runner calls     note(text="...", rollout=the calling rollout's)
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

HIDDEN = "_envmask_context"  # set on a function whose schema hides a parameter: the function itself, and the parameter


@dataclass(slots=True, eq=False)
class RolloutContext:
    """The rollout that calls a tool. A parameter of this type is filled in; the model neither sees it nor can set it.

    Calls of one rollout to such tools run one after another, in call order; other rollouts have other contexts.

    Example:
        def note(text: str, rollout: RolloutContext) -> str:
            '''Keep a note.

            Args:
                text: what to keep
            '''
            rollout.state.setdefault("notes", []).append(text)
            return f"{len(rollout.state['notes'])} notes"
    """

    index: int  # of the rollout, among those that are played together in this process
    prompt: Any  # as the template is shown it: equal for the rollouts of a group
    turn: int = 0  # of the model, which wrote the call
    state: dict[str, Any] = field(default_factory=dict)  # the tools' own: empty when the rollout begins


def hide_contexts(tools: Any) -> Any:
    """The tools as the model is shown them; what is no list of functions stays as it is, for others to refuse."""
    if not isinstance(tools, (list, tuple)):
        return tools
    return [hide_context(tool) if callable(tool) else tool for tool in tools]


def hide_context(tool: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same name without the parameter for the context; the tool itself if it has none."""
    parameter = None if takes_context(tool) else context_parameter(tool)
    if parameter is None:
        return tool

    @functools.wraps(tool)
    def shown(**arguments: Any) -> Any:
        raise TypeError(f"{shown.__name__} takes a RolloutContext, so only a rollout can call it")

    signature = inspect.signature(tool)
    kept = [each for name, each in signature.parameters.items() if name != parameter]
    notes = {each.name: each.annotation for each in kept} | {"return": signature.return_annotation}
    shown.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    shown.__annotations__ = {name: note for name, note in notes.items() if note is not signature.empty}
    setattr(shown, HIDDEN, (tool, parameter))
    return shown


def takes_context(tool: Callable[..., Any]) -> bool:
    return inspect.isfunction(tool) and HIDDEN in vars(tool)


def bind_contexts(tools: Iterable[tuple[str, Callable[..., Any]]], context: RolloutContext) -> dict[str, Callable]:
    """The tools of one rollout by name, those that take a context with its own."""
    return {name: bound(tool, context) if takes_context(tool) else tool for name, tool in tools}


def bound(shown: Callable[..., Any], context: RolloutContext) -> Callable[..., Any]:
    tool, parameter = vars(shown)[HIDDEN]

    @functools.wraps(shown)  # its signature too: an argument of that name is one that the tool does not take
    def call(**arguments: Any) -> Any:
        return tool(**arguments, **{parameter: context})

    return call


def context_parameter(tool: Callable[..., Any]) -> str | None:
    """The name of the parameter that is annotated as a `RolloutContext`."""
    for eval_str in (True, False):  # annotations may be texts, and name what does not exist here
        try:
            parameters = inspect.signature(tool, eval_str=eval_str).parameters.values()
        except (TypeError, ValueError, NameError, AttributeError, SyntaxError):
            continue
        return next((each.name for each in parameters if is_context(each.annotation)), None)
    return None


def is_context(annotation: Any) -> bool:
    name = RolloutContext.__name__
    if isinstance(annotation, str):
        return name in annotation
    return annotation is RolloutContext or RolloutContext in get_args(annotation)
