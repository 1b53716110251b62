"""Is the final answer right? Reads the last turn's text, without thinking and calls: never an observation.

Every reward here is 0.0 for a rollout without a final answer (ended from outside, or only calls), and None where the
dataset's gold value is None. A gold value that is a list holds alternatives: the best one counts.
"""

import logging
import math
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

from .answer_text import normalise, numbers_in, word_f1, words
from .reading import Rollout
from .reward import Reward, column_of

Extract = Callable[[str], str | None]  # from the final answer to the part that is compared, None if it has none


def whole(text: str) -> str:
    return text


def in_tag(tag: str = "answer") -> Extract:
    """What stands in the last pair of these tags. `in_tag()("<answer>7</answer>")` -> `"7"`."""
    pair = re.compile(rf"<{re.escape(tag)}>((?:(?!<{re.escape(tag)}>).)*?)</{re.escape(tag)}>", re.DOTALL)

    def extract(text: str) -> str | None:
        found = pair.findall(text)
        return found[-1].strip() if found else None

    return extract


def exact_answer(column: str = "answer", *, extract: Extract = whole, ignore_case: bool = False) -> Reward:
    """1.0 if the answer is the gold text, white space aside, else 0.0.

    Example:
        exact_answer("capital")(completions=[[{"role": "assistant", "content": "Oslo "}]], capital=["Oslo"])   # [1.0]
    """

    def spaced(text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if ignore_case else text

    return against_gold("exact_answer", column, extract, lambda text, gold: spaced(text) == spaced(str(gold)))


def em_answer(column: str = "answer", *, extract: Extract = whole) -> Reward:
    """1.0 if answer and gold are equal after `normalise`, else 0.0: exact match as SQuAD and Search-R1 count it."""
    return against_gold("em_answer", column, extract, lambda text, gold: normalise(text) == normalise(str(gold)) != "")


def f1_answer(column: str = "answer", *, extract: Extract = whole) -> Reward:
    """Word F1 of answer and gold after `normalise` (SQuAD), from 0.0 to 1.0. Text without spaces counts by character.

    Example:
        f1_answer()(completions=[[{"role": "assistant", "content": "the town of Oslo"}]], answer=["Oslo"])     # [0.5]
    """
    return against_gold("f1_answer", column, extract, lambda text, gold: word_f1(words(text), words(str(gold))))


def set_answer(
    column: str = "answer", *, extract: Extract = whole, separator: str = ",", partial: bool = False
) -> Reward:
    """Whether the answer lists exactly the gold items, in any order.

    1.0 or 0.0; with `partial`, the Jaccard index of both sets, so that an item too many costs what a missing one does.
    The gold value is a list of items, or a text with the same separator. Items are compared after `normalise`.
    """

    def items(values: Iterable[str]) -> set[str]:
        return {item for item in map(normalise, values) if item}

    def compare(text: str, gold: Any) -> float:
        found = items(text.split(separator))
        wanted = items(gold.split(separator) if isinstance(gold, str) else map(str, gold))
        if not partial or not found | wanted:
            return float(found == wanted)
        return len(found & wanted) / len(found | wanted)

    return against_gold("set_answer", column, extract, compare, alternatives=False)


def number_answer(
    column: str = "answer", *, extract: Extract = whole, tolerance: float = 1e-6, absolute: float = 1e-9
) -> Reward:
    """1.0 if the only number of the answer is the gold number, else 0.0.

    An answer with two different numbers is wrong: listing candidates is no answer. `1,234.50` and `1234.5` are one
    number, and so are `7` and `7 °C`.

    Args:
        tolerance: relative to the larger of both, as in `math.isclose`.
        absolute: for numbers near zero.
    """

    def compare(text: str, gold: Any) -> bool:
        wanted = numbers_in(str(gold))
        if len(wanted) != 1:
            raise ValueError(f"number_answer reads column {column!r}, found {gold!r}, expected one number")
        found = numbers_in(text)
        return len(found) == 1 and math.isclose(found.pop(), wanted.pop(), rel_tol=tolerance, abs_tol=absolute)

    return against_gold("number_answer", column, extract, compare)


def math_answer(column: str = "answer", *, extract: Extract = whole) -> Reward:
    """1.0 if `math_verify` finds answer and gold equal (fractions, LaTeX, sets, intervals), else 0.0.

    None where the gold value cannot be read as mathematics. Needs `pip install 'envmask_trl[math]'`.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ImportError("math_answer needs math_verify; pip install 'envmask_trl[math]'") from error

    def compare(text: str, gold: Any) -> float | None:
        alarm = threading.current_thread() is threading.main_thread()  # its time-outs use a signal
        if not alarm:
            for name in ("math_verify.parser", "math_verify.grader"):
                logging.getLogger(name).setLevel(logging.ERROR)
        wanted = parse(str(gold), parsing_timeout=5 if alarm else None)
        if not wanted:
            return None
        found = parse(text, parsing_timeout=5 if alarm else None)
        return float(verify(wanted, found, timeout_seconds=5 if alarm else None))

    return against_gold("math_answer", column, extract, compare)


def final_state(check: Callable[[Any, Rollout], float | bool | None], *, low: float = 0.0, high: float = 1.0) -> Reward:
    """What `check(environment, rollout)` says about the environment as the rollout left it.

    Reads the environment, not the text: a model that claims success has changed nothing. Needs a trainer with
    `environment_factory`, which passes one instance per rollout as `environments`.

    Example:
        final_state(lambda board, rollout: board.solved)
        final_state(lambda shop, rollout: shop.orders == rollout.row["expected_orders"])
    """

    def score(rollout: Rollout) -> float | None:
        environment = rollout.row.get("environments")
        if environment is None:
            raise ValueError(
                f"final_state reads `environments`, found {sorted(rollout.row)}; "
                "give the trainer an environment_factory"
            )
        value = check(environment, rollout)
        return None if value is None else float(value)

    return Reward(score, name="final_state", low=low, high=high)


def against_gold(
    name: str,
    column: str,
    extract: Extract,
    compare: Callable[[str, Any], float | bool | None],
    *,
    alternatives: bool = True,
) -> Reward:
    """A reward from 0.0 to 1.0 that compares a part of the final answer with a dataset column."""

    def score(rollout: Rollout) -> float | None:
        gold = column_of(rollout, column, name)
        if gold is None:
            return None
        text = None if rollout.answer is None else extract(rollout.answer)
        if text is None:
            return 0.0
        golds = gold if alternatives and isinstance(gold, list | tuple) else [gold]
        values = [value for value in (compare(text, one) for one in golds) if value is not None]
        return max(map(float, values)) if values else None

    return Reward(score, name=name, low=0.0, high=1.0)
