"""One rollout as the audit knows it: ids, who wrote them, what it is worth. Knows no trainer, no model and no files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from ..trajectory import Source
from .shown_rollouts import check_row


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """A rollout, its mask derived from authorship alone, and the constants of its loss.

    Example:
        AuditedRow((1, 2), (10, 19, 20, 11), (Source.MODEL, Source.MODEL, Source.ENV, Source.MODEL),
                   trained=(1, 1, 0, 1), advantages=(0.7,))
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sources: tuple[Source, ...]  # the author of each completion token
    trained: tuple[int, ...]  # 1 = this token is to be trained
    advantages: tuple[float, ...]  # one for the row, or one per completion token
    old_logprobs: Tensor | None = None  # [C]; None: those of the policy itself
    ref_logprobs: Tensor | None = None  # [C]; needed when beta is not 0
    sampling_ratio: Tensor | None = None  # [C] or [1]; the correction for another engine's sampling

    @property
    def ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.prompt_ids, self.completion_ids

    @property
    def foreign(self) -> tuple[int, ...]:
        """1 where a token is not to be trained: another's, or of a row that is left out."""
        return tuple(1 - value for value in self.trained)

    @property
    def observations(self) -> list[range]:
        """Where the environment's texts stand in the completion: runs of ENV tokens."""
        runs, start = [], 0
        for source, run in groupby(self.sources):
            end = start + len(list(run))
            if source is Source.ENV:
                runs.append(range(start, end))
            start = end
        return runs

    def last_trained(self) -> int:
        """The position of the last trained token, -1 without one."""
        return max((i for i, value in enumerate(self.trained) if value), default=-1)


def trained_by_author(
    sources: Sequence[Source],
    completion_ids: Sequence[int],
    *,
    stop_token_ids: Sequence[int] = (),
    mask_env_tokens: bool = True,
) -> tuple[int, ...]:
    """1 on what the model wrote, up to the first stop token of its last turn; observations join only if asked for."""
    own = (Source.MODEL,) if mask_env_tokens else (Source.MODEL, Source.ENV)
    trained = [int(source in own) for source in sources]
    last_turn = len(trained)
    while last_turn and sources[last_turn - 1] is Source.MODEL:
        last_turn -= 1
    stops = [i for i in range(last_turn, len(trained)) if completion_ids[i] in stop_token_ids]
    if stops and mask_env_tokens:
        trained[stops[0] + 1 :] = [0] * (len(trained) - stops[0] - 1)
    return tuple(trained)


def row_of_saved(number: int, saved: Mapping[str, Any]) -> AuditedRow:
    """The row of a rollout file; ValueError where its columns cannot be of one rollout.

    The row's `trained` is what the trainer wrote down as its `loss_mask`, so that the audit can hold it against
    the authors; a file without that column has the `env_mask` instead.
    """
    check_row(number, saved)
    advantage = saved.get("advantage")
    advantages = advantage if isinstance(advantage, list | tuple) else (advantage or 0.0,)
    return AuditedRow(
        tuple(saved["prompt_ids"]),
        tuple(saved["completion_ids"]),
        tuple(Source(source) for source in saved["sources"]),
        tuple(saved.get("loss_mask") or saved["env_mask"]),
        tuple(advantages),
    )
