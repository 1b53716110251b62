"""Which ids does an observation add? Knows token ids, text and the chat template: no sampler, no tools.

The block that follows a turn is tokenised alone and appended. Ids that were sampled are never decoded and encoded
again, and history is never rendered again.
"""

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from ..trajectory import Segment, ToolCall
from .content_guard import ContentGuard, ControlTokenPolicy, SourcedToken, joined
from .drift import Drift
from .fitting import SHORT_MARK, cut_text, even_limits
from .limits import Cut
from .rendered_history import History, HistoryRenderer, told
from .turn_block import BlockRenderer, Renderer, TurnBlock

ObservationMode = Literal["block", "diff"]
Encoded = tuple[list[SourcedToken], tuple[Drift, ...]]
MAX_NAME, UNKNOWN_NAME = 256, "unknown_tool"  # a longer name was made up, and is not written into the scaffold
REMEMBERED = 16  # blocks that are not tokenised again: members of a group are often shown the same
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
    drift: tuple[Drift, ...] = ()  # mode "diff": where the template's rendering differs from what the rollout holds

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
        mode: "block" tokenises the block alone; "diff" renders the whole conversation, takes what it adds, and counts
            what it changes in the ids that the rollout holds. For comparing and auditing.
        strict: in mode "diff", a rendering that changes what the rollout holds raises; otherwise it is realigned by
            the longest common subsequence, with one warning.
        template_kwargs: as for `apply_chat_template`, `chat_template` included.
        renderer: what writes the text around contents instead of the chat template, which is then not needed; its
            `marks` count as control tokens.

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
        mode: ObservationMode = "block",
        strict: bool = False,
        template_kwargs: dict[str, Any] | None = None,
        renderer: Renderer | None = None,
    ):
        kwargs = dict(template_kwargs or {})
        if renderer is None and tokenizer.chat_template is None and kwargs.get("chat_template") is None:
            raise ValueError("the tokenizer has no chat template; set one, or pass chat_template")
        if mode not in ("block", "diff"):
            raise ValueError(f"mode is {mode!r}, expected 'block' or 'diff'")
        if renderer is not None and mode == "diff":
            raise ValueError("mode 'diff' compares renderings of the chat template; with a renderer use mode 'block'")
        self.tokenizer = tokenizer
        self.max_observation_tokens = max_observation_tokens
        self.cut: Cut = cut
        stop_texts = [str(tokenizer.decode([token_id])) for token_id in sorted(stop_token_ids)]
        template = BlockRenderer(tokenizer, tools=tools, stop_texts=stop_texts, template_kwargs=kwargs)
        self.renderer: Renderer = renderer or template
        self.guard = ContentGuard(tokenizer, control_tokens, self.renderer.marks)
        self.tokenise_once = lru_cache(maxsize=REMEMBERED)(self.guard.tokenise)
        self.history_renderer = HistoryRenderer(template, self.guard, strict=strict) if mode == "diff" else None
        self.min_content_tokens = len(self.guard.offsets(SHORT_MARK.strip())) + TOKENS_BESIDE_MARK
        self._said: set[str] = set()
        self._scaffold_tokens: dict[tuple[TurnBlock, bool], int] = {}

    def scaffold_tokens(self, calls: Sequence[ToolCall], *, closed: bool) -> int:
        """Tokens of the block around empty contents: no observation of these calls can be shorter."""
        key = self.renderer.block(self._harmless(calls)), closed
        if key not in self._scaffold_tokens:
            self._scaffold_tokens[key] = len(self._block_tokens(key[0], [""] * len(calls), closed=closed))
        return self._scaffold_tokens[key]

    def encode(
        self,
        calls: Sequence[ToolCall],
        contents: Sequence[str],
        *,
        closed: bool,
        max_tokens: int | None = None,
        history: History | None = None,
    ) -> Observation | None:
        """The observation of `contents`, one per call, in at most `max_tokens` tokens; None if it cannot fit.

        Args:
            calls: the calls of the turn, or one stand-in when the turn could not be read.
            contents: the results as text, in call order.
            closed: the model sampled the stop token itself; otherwise the closer is added, as TEMPLATE.
            max_tokens: room for the whole block. What is too long is cut inside its content, never in the scaffold.
            history: what the rollout holds so far; needed in mode "diff" only.

        Raises:
            ValueError: mode "diff" without a history, or with one that the template cannot show; see `strict`.
        """
        calls = self._harmless(calls)
        block = self.renderer.block(calls)
        if not block.has_tool_role:
            self._say_once("the chat template has no tool role that shows a result once; it is shown as a user's turn")
        opening = self.guard.opening(block.pieces[-1])
        safe = [self.guard.apply(content, opening) for content in contents]
        encoded = partial(self._tokens, block, calls, closed=closed, history=history)
        fitted = self._fit(safe, max_tokens, encoded)
        if fitted is None:
            return None
        texts, (tokens, drift) = fitted
        if drift:
            self._say_once(f"{told(drift)}; the observation was realigned")
        return Observation(
            segments=joined(tokens),
            contents=tuple(texts),
            num_cut=sum(text != original for text, original in zip(texts, safe, strict=True)),
            num_control_tokens=sum(len(self.guard.find(content, opening)) for content in contents),
            drift=drift,
        )

    def _harmless(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """The calls without names and ids that the model made up and that would control something in the scaffold.

        Templates write them beside a result, where a control token in them would become one.
        """
        return [
            ToolCall(
                f"call{number:05d}" if self._is_harmful(call.id) else call.id,
                UNKNOWN_NAME if self._is_harmful(call.name) else call.name,
                call.arguments,
            )
            for number, call in enumerate(calls)
        ]

    def _is_harmful(self, text: str) -> bool:
        return len(text) > MAX_NAME or "\n" in text or bool(self.guard.find(text))

    def _fit(
        self, contents: list[str], max_tokens: int | None, encoded: Callable[[list[str]], Encoded]
    ) -> tuple[list[str], Encoded] | None:
        """The contents, cut as little as it takes for `encoded` of them to have `max_tokens`; None if they cannot."""
        room = None if max_tokens is None else max(max_tokens, self.min_content_tokens)
        known = [limit for limit in (self.max_observation_tokens, room) if limit is not None]
        texts = [self._cut(text, min(known, default=None)) for text in contents]  # megabytes are not tokenised for it
        target: int | None = None  # tokens of all contents; falls in each pass, so the passes end
        while True:
            result = encoded(texts)
            excess = 0 if max_tokens is None else len(result[0]) - max_tokens
            if excess <= 0:
                return texts, result
            sizes = [len(self.guard.offsets(text)) for text in texts]
            target = sum(sizes) - excess if target is None else min(target - 1, sum(sizes) - excess)
            limits = even_limits(sizes, target)
            if target < 0 or any(
                limit < min(self.min_content_tokens, size) for limit, size in zip(limits, sizes, strict=True)
            ):
                return None
            texts = [self._cut(text, limit) for text, limit in zip(contents, limits, strict=True)]

    def _tokens(
        self,
        block: TurnBlock,
        calls: Sequence[ToolCall],
        texts: list[str],
        *,
        closed: bool,
        history: History | None,
    ) -> Encoded:
        if self.history_renderer is None:
            shown = [self.renderer.shown(calls, number, text) for number, text in enumerate(texts)]
            return self._block_tokens(block, shown, closed=closed), ()
        if history is None:
            raise ValueError("mode 'diff' compares with what the rollout holds; pass history=")
        return self.history_renderer.added(history, calls, texts)

    def _block_tokens(self, block: TurnBlock, shown: list[str], *, closed: bool) -> list[SourcedToken]:
        """Closer, scaffold and contents tokenised as one text; a closer that was sampled is dropped again."""
        tokens = self.tokenise_once((block.closer + block.pieces[0], *block.pieces[1:]), tuple(shown))
        return [token for token in tokens if not (closed and token.end <= len(block.closer))]

    def _cut(self, content: str, max_tokens: int | None) -> str:
        return content if max_tokens is None else cut_text(content, max_tokens, self.cut, self.guard.offsets)

    def _say_once(self, sentence: str) -> None:
        subject = sentence.split("(")[0]
        if subject not in self._said:
            self._said.add(subject)
            warnings.warn(sentence, stacklevel=3)
