"""Finds a tag among token ids, however it was tokenised there. Knows ids and their texts: no formats, no labels.

text     ..7</obs>\\n\\nThought:          ids    7   </  obs  >\\n\\n  Thought  :
the tag "</obs>" alone is </ obs >, in context its last token is >\\n\\n: the match ends behind it, and leaves "\\n\\n"
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """The tokens that spell a tag, and what else the first and the last of them hold.

    Example:
        TokenMatch(first=1, end=4, before="", after="\\n\\n")
    """

    first: int
    end: int  # behind the last
    before: str
    after: str


class TokenTexts:
    """The text of each token as it stands behind another one; a part of a character is U+FFFD.

    Example:
        TokenTexts(tokenizer)([9707, 1879]) == ["Hello", " world"]
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self._anchor = tokenizer("x", add_special_tokens=False)["input_ids"][-1:]
        self._head = str(tokenizer.decode(self._anchor))
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        for token_id in set(ids) - self._known.keys():
            text = str(self.tokenizer.decode([*self._anchor, token_id]))
            self._known[token_id] = text.removeprefix(self._head)
        return [self._known[token_id] for token_id in ids]


def find_tag(texts: Sequence[str], tag: str) -> list[TokenMatch]:
    """Every place where consecutive tokens spell `tag`, in order.

    Example:
        find_tag(["7", "</", "obs", ">\\n"], "</obs>") == [TokenMatch(first=1, end=4, before="", after="\\n")]
    """
    found = []
    for first, text in enumerate(texts):
        for place in range(len(text)):
            match = spelled(texts, first, place, tag)
            if match is not None:
                found.append(match)
    return found


def spelled(texts: Sequence[str], first: int, place: int, tag: str) -> TokenMatch | None:
    """The match of `tag` that begins at character `place` of token `first`, if there is one."""
    left, end = tag, first
    text = texts[first][place:]
    while left.startswith(text):
        left = left[len(text) :]
        end += 1
        if not left:
            return TokenMatch(first, end, texts[first][:place], "")
        if end == len(texts):
            return None
        text = texts[end]
    return TokenMatch(first, end + 1, texts[first][:place], text[len(left) :]) if text.startswith(left) else None
