"""Searching with tags in plain text, for models without a template for tools. Knows text and ids: no retriever.

    prompt       model writes                       environment answers                 model writes
    Question ..  I need <search>Oslo</search>       <information>Doc 1(..)</information>  <answer>Norway</answer>
    0            1                                  0                                   1            env_mask

A turn ends with the token that completes its first closing tag. If that token goes on after the tag (some vocabularies
have `>\\n` as one token), the rest of it was sampled too: it stays in the row and is trained, and is not read.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...rewards.answer_text import last_in_tag
from ...trajectory import ToolCall
from ..content_guard import ControlTokenPolicy
from ..environments import tool_name
from ..limits import RolloutLimits
from ..observations import ObservationEncoder
from ..samplers import Sample
from ..tool_calls import ParsedTurn
from ..tool_context import hide_context
from ..tool_values import find_argument_problem
from ..turn_block import TurnBlock

PLAIN_TAG = re.compile(r"[^\s<>/]+")


class TagProtocol:
    """How a model without tools searches: `<search>`, `<information>` and `<answer>` in its text, as in Search-R1.

    The loop and the mask are those of tools; only what a turn means and what is written around results is different.
    A turn that ends otherwise, with the stop token and without a tag, is an answer, too. `<information>` that the model
    writes itself is the model's text (env_mask 1) and changes nothing.

    Example:
        protocol = TagProtocol(SearchTool(retriever, k=3).search, tokenizer)
        sampler = KeptCacheSampler(model, tokenizer, stop_strings=protocol.stop_strings)
        run_rollouts(["Question: ..."], tokenizer=tokenizer, sampler=sampler, protocol=protocol)
        protocol.read_answer("So it is <answer>Norway</answer>")   # "Norway"

    Args:
        tool: what is called with the text between the search tags, as its argument `query`; usually a `SearchTool`'s.
        tokenizer: a fast tokenizer, with or without a chat template.
        search, information, answer: names of the tags.
        control_tokens: what happens to tags and control tokens inside results, see `ObservationEncoder`. By default
            "escape": a document that says `</information>` is shown as `&#60;/information>`.

    Raises:
        ValueError: names that are not three different words, or a tool that does not take `query` alone.
    """

    def __init__(
        self,
        tool: Callable[..., Any],
        tokenizer: PreTrainedTokenizerBase,
        *,
        search: str = "search",
        information: str = "information",
        answer: str = "answer",
        control_tokens: ControlTokenPolicy = "escape",
    ):
        names = (search, information, answer)
        if len(set(names)) < 3 or not all(PLAIN_TAG.fullmatch(name) for name in names):
            raise ValueError(f"the tags are named {names}, expected three different words")
        self.tokenizer = tokenizer
        self.tools = {tool_name(0, tool): hide_context(tool)}
        for name, shown in self.tools.items():
            if problem := find_argument_problem(name, shown, {"query": ""}):
                raise ValueError(f"the protocol calls its tool with `query` and nothing else, but {problem}")
        self.search, self.information, self.answer = names
        self.control_tokens: ControlTokenPolicy = control_tokens

    @property
    def stop_strings(self) -> list[str]:
        """What a sampler should stop at: `["</search>", "</answer>"]`. The loop cuts turns of samplers that do not."""
        return [f"</{self.search}>", f"</{self.answer}>"]

    def encoder(self, limits: RolloutLimits) -> ObservationEncoder:
        """Writes results between the information tags."""
        return ObservationEncoder(
            self.tokenizer,
            control_tokens=self.control_tokens,
            max_observation_tokens=limits.max_observation_tokens,
            cut=limits.observation_cut,
            renderer=TagRenderer(self.information, (self.search, self.information, self.answer)),
        )

    def cut(self, sample: Sample) -> Sample:
        """The sample up to the token that completes the first closing tag, which ends the turn; else as it was."""
        if not self._is_closed(sample, len(sample.token_ids)):
            return sample
        open_at, closed_at = 0, len(sample.token_ids)  # token counts without and with a closing tag
        while closed_at - open_at > 1:
            middle = (open_at + closed_at) // 2
            open_at, closed_at = (open_at, middle) if self._is_closed(sample, middle) else (middle, closed_at)
        logprobs = None if sample.logprobs is None else sample.logprobs[:closed_at]
        return Sample(sample.token_ids[:closed_at], logprobs, "stop")

    def _is_closed(self, sample: Sample, count: int) -> bool:
        text = str(self.tokenizer.decode(list(sample.token_ids[:count])))
        return any(tag in text for tag in self.stop_strings)

    def parse(self, text: str) -> ParsedTurn:
        """What a turn means. Its first closing tag decides; text after it is not read."""
        ends = {text.find(tag) + len(tag): tag for tag in self.stop_strings if tag in text}
        message = {"role": "assistant", "content": text[: min(ends)] if ends else self._without_stop_token(text)}
        if not ends:
            for name in (self.search, self.answer):
                if f"<{name}>" in text:
                    return ParsedTurn("malformed", message, reason=f"<{name}> without </{name}>")
            return ParsedTurn("answer", message)
        tag = ends[min(ends)]
        opening = tag.replace("</", "<")
        head = text[: min(ends) - len(tag)]
        if opening not in head:
            return ParsedTurn("malformed", message, reason=f"{tag} without {opening}")
        content = head[head.rindex(opening) + len(opening) :].strip()
        if tag == f"</{self.answer}>":
            return ParsedTurn("answer", message)
        if not content:
            return ParsedTurn("malformed", message, reason=f"nothing between {opening} and {tag}")
        (name,) = self.tools
        arguments: dict[str, Any] = {"query": content}
        function = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return ParsedTurn("calls", {**message, "tool_calls": [function]}, (ToolCall("", name, arguments),))

    def read_answer(self, text: str) -> str | None:
        """What stands in the last `<answer>` of a text that the model wrote; None if there is none.

        Read it from the last message or from `model_texts`, never from a text with documents in it.
        """
        return last_in_tag(text, self.answer)

    def _without_stop_token(self, text: str) -> str:
        return text.removesuffix(str(self.tokenizer.eos_token or ""))


class TagRenderer:
    """Writes results between tags: "\\n\\n<information>", the result, "</information>\\n\\n", as Search-R1 does."""

    def __init__(self, information: str, names: Sequence[str]):
        self.opening, self.closing = f"\n\n<{information}>", f"</{information}>\n\n"
        self.stop_texts: list[str] = []
        self.marks = tuple(mark for name in names for mark in (f"<{name}>", f"</{name}>"))

    def block(self, calls: Sequence[ToolCall]) -> TurnBlock:
        between = [f"{self.closing.strip()}{self.opening}"] * (len(calls) - 1)
        return TurnBlock(closer="", pieces=(self.opening, *between, self.closing))

    def shown(self, calls: Sequence[ToolCall], number: int, content: str) -> str:
        return content
