"""The messages of a rollout as they are read: who spoke, what was called, what came back. Knows no tokens, no markup.

user       How warm is Oslo?
assistant  calls weather {"city": "Oslo"}      turn 0
tool       weather ok, 0.2 s: {"temperature": 7}
assistant  7                                   turn 1
"""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from ..trajectory import Source
from .shown_rollouts import ShownRollout
from .token_text import shown

KNOWN = ("role", "content", "tool_calls", "name", "tool_call_id")


def conversation(rollout: ShownRollout) -> list[dict[str, Any]]:
    """The turns, every character visible; each has `role` and `text`, and where it has them `calls` and `result`.

    `turn` numbers the model's turns as `turn_index` does. Of a row without messages the runs of tokens stand in for
    them, so something is always shown.
    """
    waiting = list(rollout.tool_results)
    if not rollout.messages:
        return [*_runs(rollout), *({**_unseen(result), "unseen": False} for result in waiting)]
    prompt = rollout.row.get("prompt")
    given = [{"role": "prompt", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])
    turns = [_turn(message) | {"given": True} for message in given]
    numbers = iter(range(len(rollout.messages)))
    for message in rollout.messages:
        turn = _turn(message)
        if message.get("role") == "assistant":
            turn["turn"] = next(numbers)
        elif waiting and message.get("role") == "tool":
            turn["result"] = _result(_take(waiting, message.get("tool_call_id")))
        turns.append(turn)
    return turns + [_unseen(result) for result in waiting]


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": shown(str(message.get("role"))), "text": _readable(message.get("content"))}
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    if calls:
        turn["calls"] = [[shown(str(call.get("name"))), _readable(call.get("arguments"))] for call in calls]
    extras = [[shown(name), _readable(value)] for name, value in message.items() if name not in KNOWN and value]
    return turn | ({"extras": extras} if extras else {})


def _take(waiting: list[Mapping[str, Any]], call_id: Any) -> Mapping[str, Any]:
    """The result with the message's call id, else the first that no message has shown; results come in call order."""
    found = [number for number, result in enumerate(waiting) if result["call_id"] == call_id]
    return waiting.pop(found[0] if found else 0)


def _result(result: Mapping[str, Any]) -> list[Any]:
    return [shown(result["name"]), shown(result["status"]), result["latency_s"]]


def _unseen(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result that came back after the model's last turn: it is on record, and no token of it is in the row."""
    return {"role": "tool", "text": _readable(result["content"]), "result": _result(result), "unseen": True}


def _runs(rollout: ShownRollout) -> list[dict[str, Any]]:
    text = "".join(rollout.texts[token] for token in rollout.row["prompt_ids"])
    return [{"role": Source.PROMPT, "text": _lines(text), "given": True}, *_completion_runs(rollout)]


def _completion_runs(rollout: ShownRollout) -> Iterator[dict[str, Any]]:
    row, start = rollout.row, 0
    for (source, turn), run in groupby(zip(row["sources"], row["turn_index"], strict=True)):
        end = start + len(list(run))
        text = _lines("".join(rollout.texts[token] for token in row["completion_ids"][start:end]))
        yield {"role": str(source), "text": text} | ({"turn": turn} if turn >= 0 else {})
        start = end


def _readable(content: Any) -> str:
    """Text as it is, content blocks by their text, anything else as JSON."""
    if isinstance(content, list) and content and all(isinstance(b, Mapping) and "text" in b for b in content):
        content = "\n".join(str(block["text"]) for block in content)
    if content is None or isinstance(content, str):
        return _lines(content or "")
    return _lines(json.dumps(content, ensure_ascii=False, default=str))


def _lines(text: str) -> str:
    """`text` with every character but the line breaks visible."""
    return "\n".join(shown(line) for line in text.split("\n"))
