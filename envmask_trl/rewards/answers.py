"""Is the final answer right? Reads the last turn's text, without thinking and calls: never an observation.

Every reward here is 0.0 for a rollout without a final answer (ended from outside, or only calls), and None where the
dataset's gold value is None or NaN. A gold value that is a list holds alternatives: the best one counts.
"""

import logging
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

from .answer_text import last_in_tag, normalise, word_f1, words
from .reading import Rollout
from .reward import Reward, column_of, is_number
from .stated_numbers import numbers_in
from .values import described

COMMAS = str.maketrans("，、،", ",,,")
LATEX_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[{}])")
PROSE = re.compile(r"[^\W\d_]{2,}")
Extract = Callable[[str], str | None]  # from the final answer to the part that is compared, None if it has none


def whole(text: str) -> str:
    return text


def in_tag(tag: str = "answer") -> Extract:
    """What stands in the last pair of these tags. `in_tag()("<answer>7</answer>")` -> `"7"`."""
    if not isinstance(tag, str) or not tag.strip("<> "):
        raise ValueError(f"in_tag got {tag!r}, expected a tag's name such as 'answer'")
    return lambda text: last_in_tag(text, tag)


def exact_answer(column: str = "answer", *, extract: Extract = whole, ignore_case: bool = False) -> Reward:
    """1.0 if the answer is the gold text, white space aside, else 0.0.

    Example:
        exact_answer("capital")(completions=[[{"role": "assistant", "content": "Oslo "}]], capital=["Oslo"])   # [1.0]
    """

    def spaced(text: str) -> str:
        text = " ".join(unicodedata.normalize("NFC", text).split())
        return text.casefold() if ignore_case else text

    return against_gold("exact_answer", column, extract, lambda text, gold: spaced(text) == spaced(gold))


def em_answer(column: str = "answer", *, extract: Extract = whole) -> Reward:
    """1.0 if answer and gold are equal after `normalise`, else 0.0: exact match as SQuAD and Search-R1 count it.

    In two ways it is stricter or wider than theirs: a number keeps its sign and point, and punctuation is any script's.
    """
    return against_gold("em_answer", column, extract, lambda text, gold: normalise(text) == normalise(gold) != "")


def f1_answer(column: str = "answer", *, extract: Extract = whole) -> Reward:
    """Word F1 of answer and gold after `normalise` (SQuAD), from 0.0 to 1.0. Text without spaces counts by character.

    Example:
        f1_answer()(completions=[[{"role": "assistant", "content": "the town of Oslo"}]], answer=["Oslo"])     # [0.5]
    """
    return against_gold("f1_answer", column, extract, lambda text, gold: word_f1(words(text), words(gold)))


def set_answer(
    column: str = "answer", *, extract: Extract = whole, separator: str = ",", partial: bool = False
) -> Reward:
    """Whether the answer lists exactly the gold items, in any order.

    1.0 or 0.0; with `partial`, the Jaccard index of both sets, so that an item too many costs what a missing one does.
    The gold value is a list of items, a text with the same separator, or one item. Items are compared after
    `normalise`. With the separator "," a comma of any script parts the items.
    """
    if not isinstance(separator, str) or not separator:
        raise ValueError(f"set_answer got separator={separator!r}, expected a text such as ','")

    def items(text: str) -> set[str]:
        text = text.translate(COMMAS) if separator == "," else text
        return {item for item in map(normalise, text.split(separator)) if item}

    def compare(text: str, gold: Any) -> float:
        listed = gold if isinstance(gold, list | tuple | set | frozenset) else [gold]
        found = items(text)
        wanted = set().union(*(items(gold_text("set_answer", column, item)) for item in listed if item is not None))
        if not partial or not found | wanted:
            return float(found == wanted)
        return len(found & wanted) / len(found | wanted)

    return against_gold("set_answer", column, extract, compare, alternatives=False)


def number_answer(
    column: str = "answer", *, extract: Extract = whole, tolerance: float = 1e-6, absolute: float = 1e-9
) -> Reward:
    """1.0 if the only number of the answer is the gold number, else 0.0.

    An answer with two different numbers is wrong: listing candidates is no answer. `1,234.50` and `1234.5` are one
    number, and so are `7` and `7 °C`, `3.2 × 10^-4` and `0.00032`, `50 %` and `0.5`. How numbers are read says
    `stated_numbers.py`; fractions and roots are for `math_answer`.

    Args:
        tolerance: relative to the larger of both, as in `math.isclose`.
        absolute: for numbers near zero.
    """
    if not (is_number(tolerance) and is_number(absolute) and tolerance >= 0 and absolute >= 0):
        raise ValueError(
            f"number_answer got tolerance={tolerance!r}, absolute={absolute!r}; expected two numbers, 0 or more"
        )

    def compare(text: str, gold: str) -> bool:
        wanted = numbers_in(gold)
        if len(wanted) != 1 or not is_number((wanted_number := wanted.pop()).value):
            raise ValueError(
                f"number_answer reads column {column!r}, found {gold!r}, expected one finite number; give None where a "
                "row has none"
            )
        found = numbers_in(text)
        pairs = combinations([wanted_number, *found], 2)  # 0.5 and 50 are each 50 %, and are two numbers
        return bool(found) and all(a.equals(b, tolerance=tolerance, absolute=absolute) for a, b in pairs)

    return against_gold("number_answer", column, extract, compare)


def math_answer(column: str = "answer", *, extract: Extract = whole) -> Reward:
    """1.0 if `math_verify` finds answer and gold equal (fractions, LaTeX, sets, intervals), else 0.0.

    LaTeX may stand between dollars or, if it is all there is, bare. None where the gold value cannot be read as
    mathematics. Needs `pip install 'envmask_trl[math]'`.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ImportError("math_answer needs math_verify; pip install 'envmask_trl[math]'") from error

    def compare(text: str, gold: str) -> float | None:
        alarm = threading.current_thread() is threading.main_thread()  # its time-outs use a signal
        if not alarm:
            for name in ("math_verify.parser", "math_verify.grader"):
                logging.getLogger(name).setLevel(logging.ERROR)
        wanted = parse(in_dollars(gold), parsing_timeout=5 if alarm else None)
        if not wanted:
            return None
        found = parse(in_dollars(text), parsing_timeout=5 if alarm else None)
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

    if not callable(check):
        raise ValueError(f"final_state got {described(check)}, expected a function of an environment and a Rollout")

    def score(rollout: Rollout) -> float | None:
        environment = rollout.row.get("environments")
        if environment is None:
            raise ValueError(
                f"final_state reads `environments`, found {sorted(rollout.row)}; "
                "give the trainer an environment_factory"
            )
        value = check(environment, rollout)
        return value

    return Reward(score, name="final_state", low=low, high=high)


def in_dollars(text: str) -> str:
    r"""Bare LaTeX as `math_verify` finds it: `\frac12` -> `$\frac12$`; what is marked somewhere stays."""
    marked = any(mark in text for mark in ("$", "\\(", "\\[", "\\boxed", "\\begin"))
    without_commands = LATEX_COMMAND.sub("", text)
    is_bare = without_commands != text and not marked and not PROSE.search(without_commands)
    return f"${text.strip()}$" if is_bare else text


def gold_text(name: str, column: str, gold: Any) -> str:
    """A gold value as text.

    Raises:
        ValueError: it is a dict, a list inside a list, or bytes, whose text nobody would answer.
    """
    if isinstance(gold, bytes) or (isinstance(gold, Iterable) and not isinstance(gold, str)):
        raise ValueError(
            f"{name} reads column {column!r}, found {described(gold)}, expected a text, a number, or a list of them"
        )
    return str(gold)


def against_gold(
    name: str,
    column: str,
    extract: Extract,
    compare: Callable[[str, Any], float | bool | None],
    *,
    alternatives: bool = True,
) -> Reward:
    """A reward from 0.0 to 1.0 that compares a part of the final answer with a dataset column.

    Args:
        compare: of the part and a gold value, which is a text; without `alternatives` the value as it is.
    """
    if not isinstance(column, str) or not callable(extract):
        raise ValueError(
            f"{name} got column={column!r}, extract={extract!r}; expected a column's name and a function such as "
            "rules.in_tag('answer')"
        )

    def score(rollout: Rollout) -> float | None:
        gold = column_of(rollout, column, name)
        if gold is None:
            return None
        text = None if rollout.answer is None else extract(rollout.answer)
        if text is None:
            return 0.0
        golds = gold if alternatives and isinstance(gold, list | tuple) else [gold]
        if alternatives:
            golds = [gold_text(name, column, one) for one in golds if one is not None]
        values = [value for value in (compare(text, one) for one in golds) if value is not None]
        return max(map(float, values)) if values else None

    return Reward(score, name=name, low=0.0, high=1.0)
