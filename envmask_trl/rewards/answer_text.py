"""What is compared of two answers' texts: words and how many they have in common, what stands in tags. Knows text."""

import re
import string
import unicodedata
from collections import Counter

# Scripts that put no space between words: Thai, Lao, Tibetan, Burmese, Khmer, Kana, Han.
UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
DASH = re.compile("[\u2010-\u2015\u2212]")
PART_OF_NUMBER = re.compile(r"(?<!\w)-(?=\.?\d)|(?:(?<=\d)|(?<!\w))\.(?=\d)")
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces. `"The Oslo!"` -> `"oslo"`.

    Letters that look alike are one (full width is half width, an accent is part of its letter), and other scripts'
    punctuation is punctuation. Unlike SQuAD's, a number keeps its sign and its point: "-5" is not "5", nor "1.5" "15".
    A text that is nothing but an article keeps it: "A" is also an option's letter.
    """
    text = DASH.sub("-", unicodedata.normalize("NFKC", text).casefold())
    kept = {match.start() for match in PART_OF_NUMBER.finditer(text)}
    text = "".join(character for place, character in enumerate(text) if place in kept or not is_mark(character))
    return " ".join(ARTICLES.sub(" ", text).split() or text.split())


def is_mark(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def words(text: str) -> list[str]:
    """Words after `normalise`; of a script that writes no spaces (Chinese, Japanese, Thai), its characters."""
    return WORD.findall(normalise(text))


def word_f1(found: list[str], wanted: list[str]) -> float:
    """2 * precision * recall / (precision + recall) over words with their counts."""
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def in_pairs(text: str, opening: str, closing: str) -> list[tuple[int, int, int, int]]:
    """Where pairs of tags stand, from the left, each up to the next closing tag: (start, content, content's end, end).

    Example:
        in_pairs("x<t>7</t>", "<t>", "</t>")     [(1, 4, 5, 9)]
    """
    found, position = [], 0
    while (start := text.find(opening, position)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        position = end + len(closing)
        found.append((start, start + len(opening), end, position))
    return found


def last_in_tag(text: str, tag: str) -> str | None:
    """What stands in the last innermost pair of these tags; None without one.

    Example:
        last_in_tag("<answer>7<answer>8</answer>", "answer")     "8"
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closing)
    while end >= 0:
        start = text.rfind(opening, 0, end)
        before = text.rfind(closing, 0, end)
        if start >= 0 and start > before:
            return text[start + len(opening) : end].strip()
        end = before
    return None
