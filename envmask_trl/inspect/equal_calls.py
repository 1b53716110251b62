"""Did equal calls get equal results? Knows trajectories: no trainer, no model.

Results that reach the wrong rollout, as when they are handed out in order of arrival, look like any others one by one.
In a generation many rollouts make the same call, and there they contradict each other.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..trajectory import CallStatus, Trajectory

MAX_ECHO = 60  # characters of a result in the note


def notes_on_equal_calls(trajectories: Sequence[Trajectory]) -> list[str]:
    """A sentence if one tool, called with the same arguments, answered differently in one generation.

    Example:
        weather {"city": "Oslo"} -> 27 in rollout 0, weather {"city": "Oslo"} -> 13 in rollout 3    one note
    """
    results: dict[str, dict[str, int]] = {}  # call -> result -> how often
    for trajectory in trajectories:
        for call, content in answered_calls(trajectory):
            counts = results.setdefault(call, {})
            counts[content] = counts.get(content, 0) + 1
    repeated = {call: counts for call, counts in results.items() if sum(counts.values()) > 1}
    unequal = {call: counts for call, counts in repeated.items() if len(counts) > 1}
    if not unequal:
        return []
    call, counts = next(iter(unequal.items()))
    one, other = (repr(content[:MAX_ECHO]) for content in list(counts)[:2])
    return [
        f"equal calls got different results: {len(unequal)} of {len(repeated)} calls that were made more than once, "
        f"such as {call}, answered with {one} and {other}; results are handed out in a wrong order, unless the tool "
        "answers otherwise each time"
    ]


def answered_calls(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    """Each call that went well, and the whole text of its result; they belong together by their order."""
    results = iter(trajectory.tool_results)
    calls: list[dict[str, Any]] = []
    for message in trajectory.messages:
        if message["role"] != "tool":
            calls = [entry["function"] for entry in message.get("tool_calls") or ()]
            continue
        result = next(results, None)  # none where a protocol or a rollout_func keeps no results
        call = calls.pop(0) if calls else None  # none where a turn could not be read
        if result is not None and call is not None and result.status is CallStatus.OK:
            arguments = json.dumps(call.get("arguments"), sort_keys=True, ensure_ascii=False, default=str)
            yield f"{call.get('name')} {arguments}", result.content
