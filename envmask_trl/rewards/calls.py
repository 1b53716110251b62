"""Are the calls legal, and do they reach what has to be reached? Reads calls and their statuses, no text of a result.

Both rewards know which turn earned what (`turn_rewards`), and what they give to turns sums to the reward. Neither pays
for calling: legal calls cost nothing and earn nothing, and a step that was reached twice was reached once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..rollout.tool_context import hide_context
from ..trajectory import CallStatus, ToolCall, ToolResult
from .code import same
from .reading import Rollout, Turn, split_thinking
from .reward import TurnReward, column_of
from .values import as_list, described

Tool = Callable[..., Any] | Mapping[str, Any]  # a function with type hints and a docstring, or a JSON schema


def call_validity(tools: Sequence[Tool] | None = None, *, call_markers: Sequence[str] = ("<tool_call>",)) -> TurnReward:
    """Minus the share of calls that are not legal, from -1.0 to 0.0; None for a rollout that tried no call.

    Legal: it could be read, its tool exists, its arguments fit. Without `tools` the loop's own statuses decide, which
    know names and which arguments are there; with `tools`, also the arguments' types against the JSON schema. A legal
    call whose tool then failed is legal.

    Under a trainer that passes no trajectories, `tools` is needed, and a call that could not be read is known by its
    marker, left behind in the text.

    Example:
        call_validity([weather])(trajectories=trajectories)    # two of four calls were legal: [-0.5]

    Args:
        tools: functions, or schemas as `tools=` of a chat template takes them; for environments, those of an instance.
    """
    validators = None if tools is None else argument_validators(tools)

    def illegal(turn: Turn, known: bool) -> tuple[int, int]:
        """(illegal calls, calls) of one turn."""
        said = split_thinking(turn.raw)[1]
        if turn.unreadable or (not known and not turn.calls and any(marker in said for marker in call_markers)):
            return 1, 1
        results = [*turn.results, *[None] * (len(turn.calls) - len(turn.results))]
        pairs = list(zip(turn.calls, results, strict=True))
        return sum(is_illegal(call, result, validators) for call, result in pairs), len(pairs)

    def turn_score(rollout: Rollout) -> list[float] | None:
        known = rollout.trajectory is not None
        if not known and validators is None:
            raise ValueError("call_validity got no `trajectories` from the trainer; give it tools=[...] to check calls")
        counts = [illegal(turn, known) for turn in rollout.turns]
        total = sum(tried for _, tried in counts)
        return [-wrong / total for wrong, _ in counts] if total else None

    return TurnReward(turn_score, name="call_validity", low=-1.0, high=0.0)


def gold_steps(column: str = "steps") -> TurnReward:
    """Share of the dataset's gold steps that a successful call reached, from 0.0 to 1.0, in any order.

    A step is a tool's name, or `{"name": ..., "arguments": {...}}`, whose arguments must be among the call's. Each is
    reached once, by one call, in the first turn that does it: calling again earns nothing, and a call that reaches
    several counts for the one with the most arguments. None where the column is None or empty. Arrow fills missing keys
    of arguments with null, so a null in a gold step asks for nothing; steps may also be JSON text.

    Example:
        steps = [{"name": "weather", "arguments": {"city": "Oslo"}}, "calculator"]
        gold_steps().turn_rewards(trajectories=[...], steps=[steps])      # [[0.5, 0.5, 0.0]]
    """

    def turn_score(rollout: Rollout) -> list[float] | None:
        left = read_steps(column_of(rollout, column, "gold_steps"), column)
        total = len(left)
        if not total:
            return None
        scores = []
        for turn in rollout.turns:
            before = len(left)
            for call, result in turn.answered_calls:
                reached = max(
                    (step for step in left if reaches(call, step)), key=lambda step: len(step[1]), default=None
                )
                if result.status is CallStatus.OK and reached is not None:
                    left.remove(reached)
            scores.append((before - len(left)) / total)
        return scores

    return TurnReward(turn_score, name="gold_steps", low=0.0, high=1.0)


def is_illegal(call: ToolCall, result: ToolResult | None, validators: Mapping[str, Any] | None) -> bool:
    """Whether the loop refused the call, or its arguments do not fit; without a result the latter decides alone."""
    if result is not None and result.status.was_refused:
        return True
    if validators is None:
        return not isinstance(call.arguments, dict)
    validator = validators.get(call.name)
    return validator is None or not validator.is_valid(call.arguments)


def argument_validators(tools: Sequence[Tool]) -> dict[str, Any]:
    """Per tool name the jsonschema validator of its arguments; a name that the schema does not list is no argument."""
    from jsonschema import Draft202012Validator, SchemaError
    from transformers.utils import DocstringParsingException, TypeHintParsingException, get_json_schema

    if isinstance(tools, Mapping) or (listed := as_list(tools)) is None:
        raise ValueError(f"call_validity got {described(tools)} as tools, expected a list of functions or JSON schemas")
    unusable = DocstringParsingException, TypeHintParsingException, SchemaError, *(AttributeError, KeyError, TypeError)
    validators = {}
    for tool in listed:
        try:
            schema = get_json_schema(hide_context(tool)) if callable(tool) else tool
            function = schema.get("function", schema)
            parameters = {"type": "object", "additionalProperties": False, **(function.get("parameters") or {})}
            Draft202012Validator.check_schema(parameters)
            validators[function["name"]] = Draft202012Validator(parameters)
        except unusable as error:
            raise ValueError(
                f"call_validity got the tool {described(tool)}, which has no JSON schema with a name and parameters "
                f"({str(error).splitlines()[0]}); give a function with type hints and a docstring, or a schema"
            ) from error
    return validators


def read_steps(gold: Any, column: str) -> list[tuple[str, dict[str, Any]]]:
    """The steps of a row as names and arguments.

    Raises:
        ValueError: the column holds something else.
    """
    try:
        steps = json.loads(gold) if isinstance(gold, str) else gold
        if isinstance(steps, str | Mapping):
            raise TypeError("one step is no list")
        return [as_step(step) for step in steps or ()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"gold_steps reads column {column!r}, found {str(gold)[:80]!r}, expected a list of tools' names and of "
            "{'name': ..., 'arguments': {...}}, or its JSON text"
        ) from error


def as_step(step: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`"add"` -> `("add", {})`; `{"name": "add", "arguments": {"a": 1, "b": None}}` -> `("add", {"a": 1})`."""
    if isinstance(step, str):
        return step, {}
    name, wanted = step["name"], step.get("arguments") or {}
    wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(name, str) or not isinstance(wanted, Mapping):
        raise TypeError("a step needs a name, and arguments that are an object")
    return name, without_nulls(wanted)


def without_nulls(value: Any) -> Any:
    """The value without keys that Arrow has filled with null, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def reaches(call: ToolCall, step: tuple[str, dict[str, Any]]) -> bool:
    """Whether the call is of the step's tool and has its arguments, perhaps among others."""
    name, wanted = step
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    try:
        return call.name == name and all(
            key in arguments and same(without_nulls(arguments[key]), value) for key, value in wanted.items()
        )
    except RecursionError:  # a model can nest brackets without end
        return False
