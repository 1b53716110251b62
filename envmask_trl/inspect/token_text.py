"""The text of single tokens, fit to be looked at. Knows vocabularies and characters: no rollouts, no markup."""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VISIBLE = {"\n": "⏎", "\t": "→"}


def token_texts(tokenizer: "PreTrainedTokenizerBase", token_ids: Iterable[int]) -> dict[int, str]:
    """The text of each id alone, in order of first use: white space kept, parts of a character as `⟨f0 9f⟩`.

    Example:
        {9707: "Hello", 1879: " world", 8145: "�"} -> {9707: "Hello", 1879: " world", 8145: "⟨e2 82⟩"}
    """
    return {token_id: _token_text(tokenizer, token_id) for token_id in dict.fromkeys(token_ids)}


def _token_text(tokenizer: "PreTrainedTokenizerBase", token_id: int) -> str:
    (text,) = tokenizer.batch_decode([[token_id]], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    piece = tokenizer.convert_ids_to_tokens([token_id])[0]
    if not text or piece is None:
        return text or f"⟨id {token_id}⟩"
    if piece.startswith("▁"):  # SentencePiece drops the space in front of what it decodes first
        return " " * (len(piece) - len(piece.lstrip("▁"))) + text.lstrip(" ")
    return _with_bytes(piece) or text if "�" in text else text


def _with_bytes(piece: str) -> str | None:
    """The text of a byte-level or `<0xF0>` piece, its broken bytes as hex; None for any other kind of piece."""
    fallback = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
    if fallback:
        raw = bytes.fromhex(fallback[1])
    elif all(character in BYTE_OF for character in piece):
        raw = bytes(BYTE_OF[character] for character in piece)
    else:
        return None
    text = raw.decode("utf-8", "surrogateescape")
    return re.sub(r"[\udc80-\udcff]+", lambda run: f"⟨{run[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩", text)


def _byte_alphabet() -> dict[str, int]:
    """The character that a byte-level vocabulary writes for each byte (GPT-2's `bytes_to_unicode`), inverted."""
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(byte): byte for byte in themselves} | {chr(256 + number): byte for number, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()


def shown(text: str) -> str:
    """`text` with every character visible, on one line: `⏎`, `→`, and escapes for what would not print.

    Direction overrides and terminal codes are escaped too, so that a token cannot disturb its surroundings.

    Example:
        shown("a\\n\\x1b[2J") == "a⏎\\\\x1b[2J"
    """
    return text if text.isprintable() else "".join(map(_shown_character, text))


@cache
def _shown_character(character: str) -> str:
    if character.isprintable():
        return character
    return VISIBLE.get(character) or character.encode("unicode_escape").decode("ascii")


def cells(text: str) -> int:
    """How many columns of a terminal `text` takes; wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
