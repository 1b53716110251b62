"""Tagged text as the parts of a rollout. Knows texts, tags and ids: no labels, no data sets.

encoding="pieces" (default): every turn of the model and every observation is tokenised alone, as in a rollout, where
the model's ids are sampled and the observation's block is appended. A boundary always falls between two tokens.

encoding="whole": the text is tokenised in one go, or its ids are given, and the tags are found among the tokens. A
token with visible text of both sides belongs to neither: such a row is a problem. White space goes to either side.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from ..rollout.content_guard import ContentGuard, joined
from ..rollout.episodes import encode_prompt
from ..trajectory import Source
from .conversations import ERROR_PREFIX
from .parts import Kind, Part, Reason, RowProblem
from .tag_format import OBSERVATION, TagFormat
from .tag_reader import Span, read_spans
from .token_match import TokenMatch, TokenTexts, find_tag

Encoding = Literal["pieces", "whole"]


class TaggedTextReader:
    """Reads texts in one format.

    Example:
        reader = TaggedTextReader(tokenizer, FORMATS["search_r1"])
        reader.parts("Who founded Rome?", "<search>Rome</search>\\n<information>..</information>\\n<answer>..</answer>")

    Args:
        tokenizer: a fast tokenizer.
        fmt: the tags.
        encoding: see this file's head.
        template_kwargs: as for `apply_chat_template`, for prompts that are messages.
        by_kind: tell thoughts from calls and answers; without it a turn is one part.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        fmt: TagFormat,
        *,
        encoding: Encoding = "pieces",
        template_kwargs: dict[str, Any] | None = None,
        by_kind: bool = False,
    ):
        if encoding not in ("pieces", "whole"):
            raise ValueError(f"encoding is {encoding!r}, expected 'pieces' or 'whole'")
        self.tokenizer = tokenizer
        self.fmt = fmt
        self.encoding = encoding
        self.by_kind = by_kind
        self.kwargs = dict(template_kwargs or {})
        self.guard = ContentGuard(tokenizer, marks=() if fmt.by_line else fmt.texts)
        self.texts = TokenTexts(tokenizer)

    def parts(self, prompt: Any, text: Any, observations: Sequence[str] | None = None) -> list[Part]:
        """The parts of one row.

        Args:
            prompt: text or messages, which are not learned; None or "" where `text` is all there is. Then what stands
                before the first tag of the model ("Question: ..") is the prompt.
            text: what the model and the environment wrote, or the ids of that.
            observations: the contents of the observations, where they are known.

        Raises:
            RowProblem: an observation cannot be located, or the text cannot be encoded.
        """
        if self.encoding == "whole":
            parts = self._whole(text, observations)
        elif isinstance(text, str):
            text = encodable(text).rstrip()
            if self.fmt.ends_with_eos:  # it is added to the ids
                text = text.removesuffix(str(self.tokenizer.eos_token))
            if not prompt:
                prompt, text = self.split_prompt(text)
            parts = self._pieces(text, read_spans(text, self.fmt, observations))
        else:
            raise RowProblem(Reason.TEXT, f"found {type(text).__name__}, expected a text")
        while parts and parts[-1].source is not Source.MODEL:
            parts.pop()  # an observation that nothing follows is not part of the row
        prompt_ids = self._prompt_ids(prompt)
        return [Part(Source.PROMPT, prompt_ids), *parts] if prompt_ids else parts

    def split_prompt(self, text: str) -> tuple[str, str]:
        """What stands before the model's first tag, which no turn of the format begins with, and the rest."""
        first = next((marker.start for marker in self.fmt.markers(text) if marker.name != OBSERVATION), 0)
        return text[:first], text[first:]

    def _prompt_ids(self, prompt: Any) -> tuple[int, ...]:
        if not prompt:
            return tuple(self.tokenizer("")["input_ids"])  # a bos, where the tokenizer writes one
        try:
            return encode_prompt(prompt, (), self.tokenizer, self.kwargs)
        except (ValueError, TypeError) as error:
            raise RowProblem(Reason.TEXT, f"the prompt cannot be encoded: {error}") from error

    def _pieces(self, text: str, spans: list[Span]) -> list[Part]:
        parts: list[Part] = []
        runs = [list(run) for _, run in groupby(spans, key=lambda span: span.kind is None)]
        turn = -1
        for number, run in enumerate(runs):
            if run[0].kind is None:
                parts += self._block(text, run[0])
                continue
            turn += 1
            observed = runs[number + 1][0] if number + 1 < len(runs) else None
            failed = observed is not None and content(text, observed).strip().startswith(ERROR_PREFIX)
            parts += [replace(part, turn=turn, failed=failed) for part in self._turn(text, run, observed is None)]
        return parts

    def _turn(self, text: str, run: list[Span], is_last: bool) -> list[Part]:
        """One turn tokenised alone; its thought is what it has in common with the thought tokenised alone."""
        ids = self._ids(text[run[0].start : run[-1].end])
        if self.tokenizer.eos_token_id in ids:
            raise RowProblem(
                Reason.NOT_A_TURN, "a turn of the model holds the end-of-turn token, at which a rollout ends the turn"
            )
        kind = run[-1].kind
        cut = 0
        if self.by_kind and run[0].kind is Kind.THOUGHT:
            thought = self._ids(text[run[0].start : run[0].end])
            same = (one == other for one, other in zip(ids, thought, strict=False))
            cut = next((i for i, equal in enumerate(same) if not equal), len(thought))
        if is_last and self.fmt.ends_with_eos and kind is not Kind.CALL:
            ids = (*ids, self.tokenizer.eos_token_id)
        return [Part(Source.MODEL, each, k) for k, each in ((Kind.THOUGHT, ids[:cut]), (kind, ids[cut:])) if each]

    def _block(self, text: str, span: Span) -> list[Part]:
        """Tags, white space and content tokenised as one text, without control tokens inside the content."""
        start, end = span.content
        pieces = (text[span.start : start], text[end : span.end])
        segments = joined(self.guard.tokenise(pieces, (text[start:end],)))
        return [Part(segment.source, segment.token_ids) for segment in segments]

    def _whole(self, text: Any, observations: Sequence[str] | None) -> list[Part]:
        ids = self._ids(encodable(text)) if isinstance(text, str) else self._given_ids(text)
        texts = self.texts(ids)
        joined_text = "".join(texts)
        parts: list[Part] = []
        position, turn = 0, 0
        spans = read_spans(joined_text, self.fmt, observations)
        for span in spans:
            if span.kind is not None:
                continue
            start, end = self._boundaries(texts, joined_text, span)
            failed = content(joined_text, span).strip().startswith(ERROR_PREFIX)
            parts += [Part(Source.MODEL, ids[position:start], Kind.CALL, turn, failed)]
            parts += [Part(Source.ENV, ids[start:end])]
            position, turn = end, turn + 1
        return [*parts, Part(Source.MODEL, ids[position:], Kind.ANSWER, turn)] if position < len(ids) else parts

    def _given_ids(self, ids: Any) -> tuple[int, ...]:
        size = len(self.tokenizer)
        if not isinstance(ids, list | tuple) or not all(type(each) is int and 0 <= each < size for each in ids):
            raise RowProblem(Reason.TEXT, f"found {str(ids)[:60]!r}, expected a text or token ids from 0 to {size - 1}")
        return tuple(ids)

    def _boundaries(self, texts: list[str], text: str, span: Span) -> tuple[int, int]:
        """The first token of an observation and the one behind it, white space around it included."""
        opening = text[span.start : span.content[0]].strip()
        first = self._match(texts, text, opening, span.content[0] - len(opening))
        closing = text[span.content[1] : span.end].strip()
        if closing:
            last = self._match(texts, text, closing, span.content[1])
            end, shared = last.end, last.after
        else:  # the next part's beginning ends it
            rest = text[span.end :]
            after = self._match(texts, text, rest[: rest.index(":") + 1], span.end)
            end, shared = after.first, after.before
        if first.before.strip() or shared.strip():
            token = first.before + opening if first.before.strip() else shared
            raise RowProblem(
                Reason.SPANS_BOUNDARY,
                f"one token holds {token[:24]!r} of the model and of the observation; use encoding='pieces', or "
                "register the tags as special tokens",
            )
        start = first.first
        while start and not texts[start - 1].strip():
            start -= 1
        while closing and end < len(texts) and not texts[end].strip():
            end += 1
        return start, end

    def _match(self, texts: list[str], text: str, tag: str, place: int) -> TokenMatch:
        found = find_tag(texts, tag)
        number = text.count(tag, 0, place)
        if number >= len(found):
            raise RowProblem(Reason.NOT_FOUND, f"the tokens spell {tag!r} {len(found)} times, the text more often")
        return found[number]

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def content(text: str, span: Span) -> str:
    return text[slice(*span.content)]


def encodable(text: str) -> str:
    """The text, if it is one; half of a character from a byte-wise cut cannot be encoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowProblem(Reason.TEXT, f"the text holds half a character at {error.start}") from error
    return text
