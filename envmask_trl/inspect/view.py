"""Rollouts to look at: every token coloured by who wrote it, its mask digit beneath. Knows markup and terminals.

    #0  step 12  stop answered  correct 1  advantage +0.71
    What  is  7+5 ?   <tool_call>  ...  </tool_call>   ⏎  12  ⏎   12  <|im_end|>
    0     0   0   0   1            1    1              0  0   0   1   1
    prompt            model                            template, env   model

The digits are `env_mask` as it was saved, the colours are `sources`: where the two disagree, it shows.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ..trajectory import Source, Trajectory
from .records import load_rollouts, rollout_columns
from .shown_rollouts import Rollout, Token, check_row, read_row
from .token_text import cells, shown, token_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEANING = {
    Source.PROMPT: "given",
    Source.MODEL: "sampled",
    Source.ENV: "observed",
    Source.TEMPLATE: "chat template around an observation",
}
ANSI = {Source.PROMPT: "90", Source.MODEL: "32", Source.ENV: "38;5;208", Source.TEMPLATE: "38;5;67"}
OPEN_PROMPT_TOKENS = 40  # a longer prompt is folded away


@dataclass(frozen=True, slots=True)
class RolloutView:
    """Rollouts as one HTML page, as the output of a notebook cell, and as text for a terminal."""

    title: str
    rollouts: tuple[Rollout, ...]

    @property
    def html(self) -> str:
        """The page: no scripts, nothing that is loaded from elsewhere."""
        template = Template(files("envmask_trl.inspect").joinpath("view.html").read_text(encoding="utf-8"))
        return template.substitute(
            title=escape(self.title),
            summary=self.summary,
            legend="".join(f'<li><i class="{source}">{source}</i> {text}</li>' for source, text in MEANING.items()),
            rollouts="\n".join(_article(number, rollout) for number, rollout in enumerate(self.rollouts)),
        )

    @property
    def summary(self) -> str:
        completion = sum(len(rollout.completion) for rollout in self.rollouts)
        trained = sum(rollout.trained for rollout in self.rollouts)
        share = f" ({trained / completion:.0%})" if completion else ""
        plural = "" if len(self.rollouts) == 1 else "s"
        return f"{len(self.rollouts)} rollout{plural}, {completion} completion tokens, {trained} trained{share}"

    def save(self, path: str | os.PathLike) -> Path:
        """Write the page to one file that needs no other."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html, encoding="utf-8")
        return path

    def terminal(self, *, width: int = 100, color: bool = True, whole_prompts: bool = False) -> str:
        """Lines of tokens, `width` cells wide, each over a line of digits: a digit stands where its token starts.

        Of a long prompt only the end is shown, unless `whole_prompts`.
        """
        legend = "  ".join(_painted(source, source, color) for source in Source)
        blocks = [f"{shown(self.title)}: {self.summary}\n{legend}  1 trained  0 not trained"]
        for number, rollout in enumerate(self.rollouts):
            facts = "  ".join(f"{name} {value}" for name, value in rollout.facts)
            folded = 0 if whole_prompts else max(len(rollout.prompt) - OPEN_PROMPT_TOKENS, 0)
            heading = [f"#{number}  {shown(facts)}  ({rollout.counts})"]
            heading += [_painted(f"... {folded} prompt tokens", Source.PROMPT, color)] if folded else []
            lines = _lines((*rollout.prompt[folded:], *rollout.completion), width)
            blocks.append("\n".join([*heading, *(_painted_line(line, color) for line in lines)]))
        return "\n\n".join(blocks)

    def __str__(self) -> str:
        return self.terminal()

    def _repr_html_(self) -> str:
        style = "width:100%;height:640px;border:1px solid #8886;border-radius:8px"
        return f'<iframe sandbox="" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def view(
    trajectories: Sequence[Trajectory | Mapping[str, Any]] | str | os.PathLike,
    *,
    tokenizer: "PreTrainedTokenizerBase",
    rewards: Sequence[Mapping[str, float]] | None = None,
    advantages: Sequence[float] | None = None,
    title: str = "Rollouts",
) -> RolloutView:
    """Show rollouts: trajectories, rows of `load_rollouts`, or the parquet file or folder that they were saved to.

    Args:
        tokenizer: the one that the rollouts were made with.
        rewards: per rollout, by name of the reward function; stands in for what saved rows say.
        advantages: per rollout; stands in for what saved rows say.

    Raises:
        ValueError: a row lacks a column, or two that must have one length do not.

    Example:
        view("out/rollouts", tokenizer=tokenizer).save("rollouts.html")
    """
    items = load_rollouts(trajectories) if isinstance(trajectories, str | os.PathLike) else trajectories
    rows = [_row(item) if isinstance(item, Trajectory) else dict(item) for item in items]
    for name, column, values in (("rewards", "rewards", rewards), ("advantages", "advantage", advantages)):
        if values is None:
            continue
        if len(values) != len(rows):
            raise ValueError(f"{name} has {len(values)} values for {len(rows)} rollouts; give one per rollout")
        for row, value in zip(rows, values, strict=True):
            row[column] = value
    for number, row in enumerate(rows):
        check_row(number, row)
    texts = token_texts(tokenizer, (token for row in rows for token in (*row["prompt_ids"], *row["completion_ids"])))
    return RolloutView(title, tuple(read_row(row, texts) for row in rows))


def _row(trajectory: Trajectory) -> dict[str, Any]:
    return {name: values[0] for name, values in rollout_columns([trajectory]).items()}


def _article(number: int, rollout: Rollout) -> str:
    facts = "".join(f"<li>{escape(name)} <b>{escape(value)}</b></li>" for name, value in rollout.facts)
    runs = [(source, len(list(run))) for source, run in groupby(token.source for token in rollout.completion)]
    strip = "".join(f'<i class="{source}" style="flex-grow:{length}"></i>' for source, length in runs)
    is_open = " open" if len(rollout.prompt) <= OPEN_PROMPT_TOKENS else ""
    return (
        f"<article><header><h2>#{number}</h2><ul>{facts}</ul><p>{rollout.counts}</p></header>"
        f'<div class="strip">{strip}</div>'
        f"<details{is_open}><summary>prompt, {len(rollout.prompt)} tokens</summary>"
        f"<div>{_spans(rollout.prompt)}</div></details><div>{_spans(rollout.completion)}</div></article>"
    )


def _spans(tokens: Sequence[Token]) -> str:
    return "".join(
        f'<span class="{token.source}" title="{escape(token.about)}">{escape(shown(token.text))}<b>{token.mask}</b>'
        f"</span>{'<br>' if chr(10) in token.text else ''}"
        for token in tokens
    )


def _lines(tokens: Sequence[Token], width: int) -> Iterator[list[Token]]:
    """Cut where a token ends in a line break, and where the next one would not fit."""
    line: list[Token] = []
    room = width
    for token in tokens:
        if line and cells(shown(token.text)) > room:
            yield line
            line, room = [], width
        line.append(token)
        room -= max(cells(shown(token.text)), 1)
        if "\n" in token.text:
            yield line
            line, room = [], width
    if line:
        yield line


def _painted_line(line: Sequence[Token], color: bool) -> str:
    texts, digits = [], []
    for token in line:
        text = shown(token.text)
        texts.append(_painted(text, token.source, color))
        digits.append(_painted(str(token.mask), token.source, color) + " " * (cells(text) - 1))
    return f"{''.join(texts)}\n{''.join(digits).rstrip()}"


def _painted(text: str, source: Source, color: bool) -> str:
    return f"\x1b[{ANSI[source]}m{text}\x1b[0m" if color else text
