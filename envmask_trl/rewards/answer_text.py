"""What is compared of two answers' texts: words, how many they have in common, numbers. Knows text only."""

import math
import re
import string
from collections import Counter

NUMBER = re.compile(
    r"(?<![A-Za-z0-9_])[-+−]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<!\.)\.\d+)(?:[eE][-+]?\d+)?(?!\d)"
)
UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # scripts that put no space between words
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces. `"The Oslo!"` -> `"oslo"`.

    A text that is nothing but an article keeps it: "A" is also an option's letter.
    """
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", text).split() or text.split())


def words(text: str) -> list[str]:
    """Words after `normalise`; of a script that writes no spaces (Chinese, Japanese, Thai), its characters."""
    return WORD.findall(normalise(text))


def word_f1(found: list[str], wanted: list[str]) -> float:
    """2 * precision * recall / (precision + recall) over words with their counts."""
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def numbers_in(text: str) -> set[float]:
    """The different finite numbers that a text states. `"7 °C, that is 7.0"` -> `{7.0}`."""
    values = {float(match.replace(",", "").replace("−", "-")) for match in NUMBER.findall(text)}
    return {value for value in values if math.isfinite(value)}
