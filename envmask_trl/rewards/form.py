"""Is the answer in the form asked for? Reads the last turn's text; `overlong` counts the model's own tokens."""

import re

from .answers import in_tag
from .reading import Rollout
from .reward import Reward
from .values import is_whole


def answer_tag(tag: str = "answer") -> Reward:
    """1.0 if the final answer is exactly one pair of tags with something in it and nothing behind it, else 0.0.

    Tags inside thinking, in an earlier turn or in an observation do not count, nor does an empty pair.

    Example:
        answer_tag()     "It is <answer>7</answer>" 1.0     "<answer></answer>" 0.0     "<answer>7</answer> or 8" 0.0
    """
    extract, marks = in_tag(tag), re.compile(rf"</?{re.escape(tag)}>")

    def score(rollout: Rollout) -> float:
        answer = (rollout.answer or "").rstrip()
        one_pair = marks.findall(answer) == [f"<{tag}>", f"</{tag}>"]
        return float(one_pair and answer.endswith(f"</{tag}>") and bool(re.search(r"\w", extract(answer) or "")))

    return Reward(score, name="answer_tag", low=0.0, high=1.0)


def answer_length(*, at_most: int, at_least: int = 0) -> Reward:
    """0.0 for a final answer of `at_least` to `at_most` characters, down to -1.0 as it leaves them; None without one.

    Over the limit it falls in a line, to -1.0 at twice `at_most`; under it, to -1.0 at no character.
    """
    if not (is_whole(at_least) and is_whole(at_most)) or not 0 <= at_least <= at_most or at_most < 1:
        raise ValueError(
            f"answer_length got at_least={at_least!r}, at_most={at_most!r}; expected whole numbers, 0 <= at_least <= "
            "at_most, and at_most at least 1"
        )

    def score(rollout: Rollout) -> float | None:
        if rollout.answer is None:
            return None
        length = len(rollout.answer)
        over, under = max(length - at_most, 0) / at_most, max(at_least - length, 0) / max(at_least, 1)
        return -min(1.0, over + under)

    return Reward(score, name="answer_length", low=-1.0, high=0.0)


def overlong(*, at_most: int, soft: int) -> Reward:
    """DAPO's soft overlong punishment over the tokens that the model wrote: observations are not its length.

        0.0 up to at_most - soft, then (at_most - soft - length) / soft, -1.0 from at_most on
        (equation 13 of https://huggingface.co/papers/2503.14476)

    Under a trainer that passes no trajectories, all tokens of `completion_ids` are counted, observations included.
    """
    if not (is_whole(soft) and is_whole(at_most)) or not 0 < soft <= at_most:
        raise ValueError(
            f"overlong got at_most={at_most!r}, soft={soft!r}; expected whole numbers, 0 < soft <= at_most"
        )

    def score(rollout: Rollout) -> float:
        if rollout.trajectory is not None:
            length = sum(rollout.trajectory.env_mask)
        elif "completion_ids" in rollout.row:
            length = len(rollout.row["completion_ids"])
        else:
            raise ValueError("overlong counts tokens; it needs `trajectories` or `completion_ids` from the trainer")
        return -min(1.0, max(0, length - (at_most - soft)) / soft)

    return Reward(score, name="overlong", low=-1.0, high=0.0)
