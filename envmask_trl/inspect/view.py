"""Rollouts to look at: every token coloured by who wrote it, its mask digit beneath. Knows which form is asked for.

    #0  step 12  stop answered  correct 1  advantage +0.71
    What  is  7+5 ?   <tool_call>  ...  </tool_call>   ⏎  12  ⏎   12  <|im_end|>
    0     0   0   0   1            1    1              0  0   0   1   1
    prompt            model                            template, env   model

The digits are the mask as it was saved, the colours are `sources`: where the two disagree, it shows.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trajectory import Trajectory
from .page import frame, page
from .page_data import pack
from .records import load_rollouts, rollout_columns
from .shown_rollouts import ShownRollout, check_is_row, check_row
from .terminal import block, legend, wants_color
from .token_text import shown, token_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT_TOKENS = 40  # a terminal shows that many of a prompt's last ones
PRINTED_ROLLOUTS = 20  # `print` shows no more


@dataclass(frozen=True, slots=True)
class RolloutView:
    """Rollouts as one HTML page, as the output of a notebook cell, and as text for a terminal."""

    title: str
    rollouts: tuple[ShownRollout, ...]
    texts: Mapping[int, str]  # of every id in them

    @property
    def html(self) -> str:
        """The page: one text that loads nothing from elsewhere."""
        return page(self.title, summary=self.summary, data=pack(self.rollouts, self.texts))

    @property
    def summary(self) -> str:
        completion = sum(len(rollout.row["completion_ids"]) for rollout in self.rollouts)
        trained = sum(rollout.trained for rollout in self.rollouts)
        share = f" ({trained / completion:.0%})" if completion else ""
        plural = "" if len(self.rollouts) == 1 else "s"
        return f"{len(self.rollouts):,} rollout{plural}, {completion:,} completion tokens, {trained:,} trained{share}"

    def save(self, path: str | os.PathLike) -> Path:
        """Write the page to one file that needs no other."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html, encoding="utf-8")
        return path

    def terminal(
        self, *, width: int = 100, color: bool | None = None, whole_prompts: bool = False, first: int | None = None
    ) -> str:
        """Lines of tokens, `width` cells wide, each over a line of digits: a digit stands where its token starts.

        Args:
            color: None colours for a terminal that wants it (NO_COLOR is honoured), and nothing for a file or a pipe.
            whole_prompts: otherwise only the end of a long prompt is shown.
            first: how many rollouts; None is all of them.
        """
        color = wants_color() if color is None else color
        prompt_tokens = None if whole_prompts else PROMPT_TOKENS
        blocks = [f"{shown(self.title)}: {self.summary}\n{legend(color)}"]
        for number, rollout in enumerate(self.rollouts[:first]):
            blocks.append(block(number, rollout, width=width, color=color, prompt_tokens=prompt_tokens))
        left = len(self.rollouts) - len(self.rollouts[:first])
        return "\n\n".join([*blocks, f"... {left:,} more rollouts"] if left else blocks)

    def __str__(self) -> str:
        return self.terminal(first=PRINTED_ROLLOUTS)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # at the end of a notebook's cell

    def _repr_html_(self) -> str:
        return frame(self.html)


def view(
    trajectories: Sequence[Trajectory | Mapping[str, Any]] | str | os.PathLike,
    *,
    tokenizer: "PreTrainedTokenizerBase",
    rewards: Sequence[Mapping[str, float]] | None = None,
    advantages: Sequence[float] | Sequence[list[float]] | None = None,
    title: str = "Rollouts",
) -> RolloutView:
    """Show rollouts: trajectories, rows of `load_rollouts`, or the parquet file or folder that they were saved to.

    Args:
        tokenizer: the one that the rollouts were made with.
        rewards: per rollout, by name of the reward function; stands in for what saved rows say.
        advantages: per rollout one number, or one per completion token; stands in for what saved rows say.

    Raises:
        ValueError: a row lacks a column, or two that must have one length do not; or there is no tokenizer.

    Example:
        view("out/rollouts", tokenizer=tokenizer).save("rollouts.html")
    """
    from ..rollout.model_and_tokenizer import check_tokenizer  # loads torch

    check_tokenizer(tokenizer)
    if isinstance(trajectories, Trajectory | Mapping):
        raise ValueError(f"one {type(trajectories).__name__} was given, expected a list of them; write view([...])")
    items = load_rollouts(trajectories) if isinstance(trajectories, str | os.PathLike) else trajectories
    rows = [_row(number, item) for number, item in enumerate(items)]
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
    return RolloutView(title, tuple(ShownRollout(row, texts) for row in rows), texts)


def _row(number: int, item: Trajectory | Mapping[str, Any]) -> dict[str, Any]:
    """The row that `load_rollouts` would return of a trajectory; a copy of a row."""
    if not isinstance(item, Trajectory):
        check_is_row(number, item)
        return dict(item)
    row = {name: values[0] for name, values in rollout_columns([item]).items()}
    return row | {name: json.loads(row[name]) for name in ("prompt", "messages", "tool_results")}
