"""What a page knows of its rollouts, packed small. Knows the format that `page/data.js` reads: no markup.

The format is base64 of a zlib stream of ASCII lines, each one JSON value: first the texts of all ids, then the facts of
all rollouts (what the list and the filters need), then one line per rollout, which the page reads when it is looked at.
Nothing that a tool or a model wrote stands in the page as it is, so nothing of it can be taken for markup.
"""

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ..trajectory import Source, StopReason
from .conversation import conversation
from .shown_rollouts import ShownRollout
from .token_text import shown

OPENING_CHARACTERS = 80  # of what the user asked, in the list


def pack(rollouts: Sequence[ShownRollout], texts: Mapping[int, str]) -> str:
    """The data of a page.

    Example:
        lines = zlib.decompress(base64.b64decode(pack(rollouts, texts))).split(b"\\n")
        json.loads(lines[0])["ids"]  # [9707, 1879]: a token in the later lines is a position in this list
    """
    positions = {token: position for position, token in enumerate(texts)}
    lines = [vocabulary(texts), [head(rollout) for rollout in rollouts], *(body(each, positions) for each in rollouts)]
    text = "\n".join(json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines)
    return base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii")


def vocabulary(texts: Mapping[int, str]) -> dict[str, list]:
    """Parallel lists: the ids, their texts with every character visible, their exact texts as Python writes them."""
    return {
        "ids": list(texts),
        "texts": [shown(text) for text in texts.values()],
        "exact": [repr(text) for text in texts.values()],
        "breaks": [int("\n" in text) for text in texts.values()],
    }


def head(rollout: ShownRollout) -> dict[str, Any]:
    """What the list shows and the filters ask for."""
    row, reason = rollout.row, StopReason(rollout.row["stop_reason"])
    advantage = row.get("advantage")
    return {
        "step": row.get("step"),
        "stop": str(reason),
        "unfinished": reason.unfinished,
        "rewards": {shown(name): number(value) for name, value in (row.get("rewards") or {}).items()},
        "advantage": None if isinstance(advantage, list) else number(advantage),
        "tools": [shown(name) for name in rollout.tools],
        "failed": rollout.failed_calls,
        "latency": round(sum(result["latency_s"] for result in rollout.tool_results), 4),
        "facts": [[shown(name), value] for name, value in rollout.facts],
        "tokens": [len(row["prompt_ids"]), len(row["completion_ids"]), rollout.trained],
        "opening": _opening(row.get("prompt")),
    }


def body(rollout: ShownRollout, positions: Mapping[int, int]) -> dict[str, Any]:
    """Tokens as positions in the vocabulary; authors, turns and masks as runs of [source, turn, mask, length].

    `logprobs` has one value for each token of the model and none for the others, who have no log-prob.
    """
    row, logprobs = rollout.row, rollout.row.get("logprobs")
    sampled = zip(row["sources"], logprobs, strict=True) if logprobs is not None else ()
    columns = zip(row["sources"], row["turn_index"], rollout.mask, strict=True)
    runs = [[str(key[0]), key[1], int(key[2]), len(list(run))] for key, run in groupby(columns)]
    advantage = row.get("advantage")
    return {
        "prompt": [positions[token] for token in row["prompt_ids"]],
        "completion": [positions[token] for token in row["completion_ids"]],
        "runs": runs,
        "logprobs": [number(value) for source, value in sampled if source == Source.MODEL],
        "advantages": [number(value) for value in advantage] if isinstance(advantage, list) else None,
        "talk": conversation(rollout),
    }


def number(value: float | None) -> float | str | None:
    """Four decimals; what JSON has no number for as text: a NaN under a 1 must be seen."""
    if value is None:
        return None
    return round(value, 4) if math.isfinite(value) else str(value)


def _opening(prompt: Any) -> str:
    """The first characters of the last message of the prompt."""
    content = prompt[-1].get("content") if isinstance(prompt, list) and prompt else prompt
    return shown(content[:OPENING_CHARACTERS]) if isinstance(content, str) else ""
