"""Which ids does an observation add? Knows token ids, text and the chat template: no sampler, no tools.

The block that follows a turn is tokenised alone and appended. Ids that were sampled are never decoded and encoded
again, and history is never rendered again.
"""

import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from ..trajectory import Segment, Source, ToolCall
from .fitting import cut_mark, cut_text, even_limits
from .limits import Cut
from .turn_block import BlockRenderer, TurnBlock

ControlTokenPolicy = Literal["split", "escape", "reject"]
TOKENS_BESIDE_MARK = 4  # a content is never cut below its mark and this


@dataclass(frozen=True, slots=True)
class Observation:
    """The tokens that one round of results adds to a rollout, the next turn's opening included.

    Example:
        Observation(segments=(Segment(TEMPLATE, (20,)), Segment(ENV, (21, 22)), Segment(TEMPLATE, (23,))),
                    contents=("7 degrees",), num_cut=0, num_control_tokens=0)
    """

    segments: tuple[Segment, ...]
    contents: tuple[str, ...]  # each result as the model sees it, after cutting
    num_cut: int  # contents that were shortened
    num_control_tokens: int  # control tokens found in contents; none of them became a control id

    @property
    def num_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)


class ObservationEncoder:
    """Encodes the results of a turn's calls as the block that the chat template would write after that turn.

    Example:
        encoder = ObservationEncoder(tokenizer, stop_token_ids={tokenizer.eos_token_id})
        encoder.encode([ToolCall("call00000", "weather", {"city": "Oslo"})], ["7 degrees"], closed=True)

    Args:
        tokenizer: a fast tokenizer with a chat template.
        tools: as passed to the prompt.
        stop_token_ids: every id that may end a turn.
        control_tokens: what happens to control tokens inside a result: "split" encodes them as ordinary text,
            "escape" writes their first character as a character reference, "reject" withholds the whole result.
        max_observation_tokens: most tokens of one result's content.
        cut: the part of a too long content that is left out.
        template_kwargs: as for `apply_chat_template`, `chat_template` included.

    Raises:
        ValueError: the tokenizer is not a fast one, has no chat template, or an option has no such value.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tools: list | None = None,
        stop_token_ids: Collection[int] = (),
        control_tokens: ControlTokenPolicy = "split",
        max_observation_tokens: int | None = None,
        cut: Cut = "tail",
        template_kwargs: dict[str, Any] | None = None,
    ):
        kwargs = dict(template_kwargs or {})
        if not tokenizer.is_fast:
            raise ValueError(f"{type(tokenizer).__name__} is not a fast tokenizer, whose token offsets are needed here")
        if tokenizer.chat_template is None and kwargs.get("chat_template") is None:
            raise ValueError("the tokenizer has no chat template; set one, or pass chat_template")
        if control_tokens not in ("split", "escape", "reject"):
            raise ValueError(f"control_tokens is {control_tokens!r}, expected 'split', 'escape' or 'reject'")
        self.tokenizer = tokenizer
        self.control_tokens = control_tokens
        self.max_observation_tokens = max_observation_tokens
        self.cut: Cut = cut
        stop_texts = [str(tokenizer.decode([token_id])) for token_id in sorted(stop_token_ids)]
        self.renderer = BlockRenderer(tokenizer, tools=tools, stop_texts=stop_texts, template_kwargs=kwargs)
        literals = sorted((text for text in tokenizer.get_added_vocab() if len(text) > 1), key=len, reverse=True)
        self._literal = re.compile(f"(?=({'|'.join(map(re.escape, literals))}))") if literals else re.compile("(?!)")
        self.min_content_tokens = self._count(cut_mark(cut, "over 100000")) + TOKENS_BESIDE_MARK
        self._said_no_tool_role = False

    def scaffold_tokens(self, calls: Sequence[ToolCall], *, closed: bool) -> int:
        """Tokens of the block around empty contents: no observation of these calls can be shorter."""
        block = self.renderer.block(calls)
        return sum(len(s.token_ids) for s in self._segments(block, [""] * len(calls), closed=closed))

    def encode(
        self, calls: Sequence[ToolCall], contents: Sequence[str], *, closed: bool, max_tokens: int | None = None
    ) -> Observation | None:
        """The observation of `contents`, one per call, in at most `max_tokens` tokens; None if it cannot fit.

        Args:
            calls: the calls of the turn, or one stand-in when the turn could not be read.
            contents: the results as text, in call order.
            closed: the model sampled the stop token itself; otherwise the closer is added, as TEMPLATE.
            max_tokens: room for the whole block. What is too long is cut inside its content, never in the scaffold.
        """
        block = self.renderer.block(calls)
        self._say_no_tool_role(block)
        safe = [self._apply_policy(content) for content in contents]
        texts = [self._cut(text, self.max_observation_tokens) for text in safe]
        target: int | None = None  # tokens of all contents; falls in each pass, so the passes end
        while True:
            shown = [self.renderer.shown(calls, number, text) for number, text in enumerate(texts)]
            segments = self._segments(block, shown, closed=closed)
            excess = 0 if max_tokens is None else sum(len(s.token_ids) for s in segments) - max_tokens
            if excess <= 0:
                break
            sizes = [self._count(text) for text in texts]
            target = sum(sizes) - excess if target is None else min(target - 1, sum(sizes) - excess)
            limits = even_limits(sizes, target)
            if any(limit < min(self.min_content_tokens, size) for limit, size in zip(limits, sizes, strict=True)):
                return None
            texts = [self._cut(text, limit) for text, limit in zip(safe, limits, strict=True)]
        return Observation(
            segments=segments,
            contents=tuple(texts),
            num_cut=sum(text != original for text, original in zip(texts, safe, strict=True)),
            num_control_tokens=sum(len(self._literal.findall(content)) for content in contents),
        )

    def _segments(self, block: TurnBlock, shown: list[str], *, closed: bool) -> tuple[Segment, ...]:
        """Tokenise closer + scaffold + contents as one text; a closer that was sampled is dropped again.

        A control token's text that touches a content is cut in two before tokenising, so it cannot become its id.
        """
        text = block.closer + block.pieces[0]
        content_spans = []
        for content, piece in zip(shown, block.pieces[1:], strict=True):
            content_spans.append((len(text), len(text) + len(content)))
            text += content + piece
        cuts = [
            match.start() + 1
            for match in self._literal.finditer(text)
            if overlaps(match.start(), match.start() + len(match.group(1)), content_spans)
        ]
        segments: list[Segment] = []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            encoding = self.tokenizer(text[start:end], add_special_tokens=False, return_offsets_mapping=True)
            for token_id, (left, right) in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True):
                if closed and start + right <= len(block.closer):
                    continue
                is_content = overlaps(start + left, start + right, content_spans)
                append_token(segments, Source.ENV if is_content else Source.TEMPLATE, token_id)
        return tuple(segments)

    def _apply_policy(self, content: str) -> str:
        if self.control_tokens == "split" or not self._literal.search(content):
            return content
        if self.control_tokens == "reject":
            return "Error: the result was withheld because it contains control tokens"
        starts = {match.start() for match in self._literal.finditer(content)}
        return "".join(f"&#{ord(char)};" if place in starts else char for place, char in enumerate(content))

    def _cut(self, content: str, max_tokens: int | None) -> str:
        return content if max_tokens is None else cut_text(content, max_tokens, self.cut, self.tokenizer)

    def _count(self, content: str) -> int:
        return len(self.tokenizer(content, add_special_tokens=False)["input_ids"])

    def _say_no_tool_role(self, block: TurnBlock) -> None:
        if not block.has_tool_role and not self._said_no_tool_role:
            self._said_no_tool_role = True
            warnings.warn("the chat template has no tool role; tool results are shown as a user's turn", stacklevel=3)


def append_token(segments: list[Segment], source: Source, token_id: int) -> None:
    """Add one token to the last segment if it has the same author, else open a new segment."""
    if segments and segments[-1].source is source:
        segments[-1] = Segment(source, (*segments[-1].token_ids, token_id))
    else:
        segments.append(Segment(source, (token_id,)))


def overlaps(start: int, end: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start < right and left < end for left, right in spans)
