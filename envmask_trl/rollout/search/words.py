"""From a text to the words that an index counts, in any script. Knows text only.

"Größe 42, 東京都へ"  ->  größe 42 東京 京都 都へ

Scripts that put no space between words are cut into overlapping pairs of characters, as Lucene's CJK analyser does; of
all others a word is a run of letters, their marks and digits.
"""

import unicodedata

import regex

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_RUNS = regex.compile(rf"([{_UNSPACED}][{_UNSPACED}\p{{M}}]*)|([\p{{L}}\p{{M}}\p{{N}}--[{_UNSPACED}]]+)", regex.V1)


def split_words(text: str) -> list[str]:
    """The words of a text in lower case, after Unicode's compatibility normalisation (full width becomes half)."""
    words = []
    for match in _RUNS.finditer(unicodedata.normalize("NFKC", text).casefold()):
        run = match.group()
        if match.group(1) is None or len(run) == 1:
            words.append(run)
        else:
            words += [run[i : i + 2] for i, _ in enumerate(run[1:])]
    return words
