"""Keeps the text of tools from becoming control tokens. Knows text, ids and the vocabulary: no template, no rollout."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase

from ..trajectory import Segment, Source

ControlTokenPolicy = Literal["split", "escape", "reject"]
WITHHELD = "Error: the result was withheld because it contains control tokens"
BLANK = " \t\r\n\N{LOWER ONE EIGHTH BLOCK}"  # Gemma has added tokens for runs of these; they control nothing


@dataclass(frozen=True, slots=True)
class SourcedToken:
    """One token of a text, its author, and where in the text it stands.

    Example:
        SourcedToken(token_id=20, source=Source.TEMPLATE, start=0, end=10)
    """

    token_id: int
    source: Source
    start: int  # in characters
    end: int


class ContentGuard:
    """Tokenises scaffold and contents as one text in which only the scaffold has control tokens.

    A control token is any added token of the vocabulary but white space. Where a template opens the model's turn with
    ordinary text alone ("Assistant:"), that text counts as one too, and so do the `marks`.

    Args:
        tokenizer: a fast tokenizer.
        policy: "split" encodes a control token in a content as ordinary text, "escape" writes its first character as
            a character reference, "reject" withholds the whole content.
        marks: ordinary texts that control something as well, such as the tags of a protocol.

    Raises:
        ValueError: the tokenizer is not a fast one, or there is no such policy.

    Example:
        guard = ContentGuard(tokenizer, "split")
        guard.tokenise(("<|im_start|>user\\n", "<|im_end|>\\n"), ("a page with <|im_end|> in it",))
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, policy: ControlTokenPolicy = "split", marks: Sequence[str] = ()
    ):
        if not tokenizer.is_fast:
            raise ValueError(f"{type(tokenizer).__name__} is not a fast tokenizer, whose token offsets are needed here")
        if policy not in ("split", "escape", "reject"):
            raise ValueError(f"control_tokens is {policy!r}, expected 'split', 'escape' or 'reject'")
        self.tokenizer = tokenizer
        self.policy = policy
        self.marks = tuple(marks)
        added = {text: i for text, i in tokenizer.get_added_vocab().items() if len(text) > 1 and text.strip(BLANK)}
        self.control_ids = frozenset(added.values())
        self._literal = literal_pattern(list(added))
        self._mark = literal_pattern(list(marks))
        self._normaliser = tokenizer.backend_tokenizer.normalizer
        normalised = [token.content for token in tokenizer.added_tokens_decoder.values() if token.normalized]
        self._made = literal_pattern([self._normal(text) for text in normalised if text in added])

    def opening(self, scaffold: str) -> str:
        """The ordinary text that opens the model's turn at the end of `scaffold`; "" where a control token is in it."""
        return "" if self._literal.search(scaffold) or not scaffold.strip() else scaffold.strip().splitlines()[-1]

    def find(self, text: str, opening: str = "") -> list[tuple[int, int]]:
        """Start and end of all control tokens that are written in `text`, in order; they may overlap."""
        matches = (match for pattern in (self._literal, self._mark) for match in pattern.finditer(text))
        found = [(match.start(), match.start() + len(match.group(1))) for match in matches]
        if opening:
            found += [(m.start(), m.start() + len(opening)) for m in re.finditer(f"(?={re.escape(opening)})", text)]
        made = [span for span in self._find_made(text) if not overlaps(*span, found)]
        return sorted({*found, *made})

    def _find_made(self, text: str) -> list[tuple[int, int]]:
        """Where the tokenizer's normaliser makes control tokens of what is none, such as full-width letters."""
        if self._normaliser is None or not self._made.search(self._normal(text)):
            return []
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
        return [tuple(span) for token_id, span in pairs if token_id in self.control_ids]

    def _normal(self, text: str) -> str:
        return text if self._normaliser is None else str(self._normaliser.normalize_str(text))

    def apply(self, content: str, opening: str = "") -> str:
        """The content under the policy, without lone surrogates, which no tokenizer takes."""
        content = content.encode("utf-8", errors="replace").decode("utf-8")
        starts = {start for start, _ in self.find(content, opening)}
        if self.policy == "split" or not starts:
            return content
        if self.policy == "reject":
            return WITHHELD
        return "".join(f"&#{ord(char)};" if place in starts else char for place, char in enumerate(content))

    def tokenise(self, pieces: Sequence[str], contents: Sequence[str]) -> list[SourcedToken]:
        """The tokens of `pieces[0] contents[0] pieces[1] ...`; a token that touches a content is ENV.

        A control token's text that touches a content is cut in two before tokenising, so it cannot become its id. An
        opening or a mark in ordinary text is cut inside one of its tokens, so it has other ids than the real one.
        """
        text, spans = pieces[0], []
        for content, piece in zip(contents, pieces[1:], strict=True):
            spans.append((len(text), len(text) + len(content)))
            text += content + piece
        opening = self.opening(pieces[-1])
        touching = [span for span in self.find(text, opening) if overlaps(*span, spans)]
        ordinary = {opening, *self.marks}
        cuts = sorted(
            {
                start + (self._inside_a_token(mark) if (mark := text[start:end]) in ordinary else 1)
                for start, end in touching
            }
        )
        starts, ends = [0, *cuts], [*cuts, len(text)]
        parts = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        encoded = self.tokenizer(parts, add_special_tokens=False, return_offsets_mapping=True)
        tokens: list[SourcedToken] = []
        for start, ids, offsets in zip(starts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            for token_id, (left, right) in zip(ids, offsets, strict=True):
                source = Source.ENV if overlaps(start + left, start + right, spans) else Source.TEMPLATE
                is_forged = source is Source.ENV and token_id in self.control_ids
                spelled = self._spelled(text[start + left : start + right]) if is_forged else [token_id]
                tokens += [SourcedToken(each, source, start + left, start + right) for each in spelled]
        return tokens

    def offsets(self, content: str) -> list[tuple[int, int]]:
        """Start and end of each token that `content` takes inside a scaffold."""
        return [(token.start, token.end) for token in self.tokenise(("", ""), (content,))]

    def _inside_a_token(self, text: str) -> int:
        """A place in `text` that is not between two of its tokens; 1 if all are single characters."""
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return next((left + 1 for left, right in offsets if right - left > 1), 1)

    def _spelled(self, text: str) -> list[int]:
        """The ids of each character alone: a normaliser has made a control token of what was none.

        A single character that it makes a control token of has no other ids, and is left out.
        """
        ids = (i for char in text for i in self.tokenizer(char, add_special_tokens=False)["input_ids"])
        return [token_id for token_id in ids if token_id not in self.control_ids]


def literal_pattern(literals: list[str]) -> re.Pattern[str]:
    """Matches at each place where one of `literals` starts, the longest as group 1.

    The set of first characters comes first: Gemma has 6,000 literals, and nearly no place of a text starts one.
    """
    if not literals:
        return re.compile("(?!)")
    first = "".join(re.escape(char) for char in sorted({text[0] for text in literals}))
    longest_first = sorted(literals, key=len, reverse=True)
    return re.compile(f"(?=[{first}])(?=({'|'.join(map(re.escape, longest_first))}))")


def joined(tokens: Sequence[SourcedToken]) -> tuple[Segment, ...]:
    """The tokens as segments, each a run of one author."""
    runs: list[tuple[Source, list[int]]] = []
    for token in tokens:
        if not runs or runs[-1][0] is not token.source:
            runs.append((token.source, []))
        runs[-1][1].append(token.token_id)
    return tuple(Segment(source, tuple(token_ids)) for source, token_ids in runs)


def overlaps(start: int, end: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start < right and left < end for left, right in spans)
