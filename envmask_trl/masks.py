"""From provenance to the mask that the loss uses. Knows tensors of ids and masks: no tokenizer, no model.

Every mask says what its 1 keeps. Masks select (`torch.where`); they never multiply, because `0 * nan` is `nan`.
"""

from collections.abc import Iterable
from operator import index

import torch
from torch import Tensor


def completion_mask_from_env_mask(
    env_mask: Tensor, token_ids: Tensor | None = None, eos_token_ids: Iterable[int] | None = None
) -> Tensor:
    """Which next-token predictions are trained: `env_mask[:, 1:]`, nothing after the end of the last model turn.

        ids       P  P  a  E  t  t  b  E  x        E = eos, t = observation, x = left over after the last E
        env_mask  0  0  1  1  0  0  1  1  1
        output       0  1  1  0  0  1  1  0        position i: is predicting token i+1 trained?

    An eos inside an observation, or the one that ends an earlier turn, cuts nothing. The prompt is 0 already.

    Args:
        env_mask: [B, T] over prompt + completion, 1 where the model sampled the token.
        token_ids: [B, T] the ids under the mask; needed only together with `eos_token_ids`.
        eos_token_ids: every id that ends a turn. Without it nothing is cut.

    Returns:
        [B, T-1], same dtype as `env_mask`. 1 = this prediction is trained.

    Raises:
        ValueError: `env_mask` is not [B, T], holds other values than 0 and 1, or differs in shape from `token_ids`;
            only one of `token_ids` and `eos_token_ids` was given.
    """
    check_env_mask(env_mask)
    if (token_ids is None) != (eos_token_ids is None):
        raise ValueError("completion_mask_from_env_mask got only one of token_ids and eos_token_ids; it needs both")
    if token_ids is None or eos_token_ids is None or not env_mask.size(1):
        return env_mask[:, 1:].clone()
    check_ids(token_ids)
    if token_ids.shape != env_mask.shape:
        raise ValueError(
            f"env_mask has shape {tuple(env_mask.shape)} but token_ids {tuple(token_ids.shape)}; "
            "both must cover prompt + completion of the same rows"
        )
    in_last_run = last_model_run(env_mask)  # [B, T]
    eos = torch.tensor(known_eos_ids(eos_token_ids), device=token_ids.device, dtype=torch.long)
    is_eos = torch.isin(token_ids.long(), eos) & in_last_run
    eos_before = is_eos.cumsum(dim=1) - is_eos.long()
    return env_mask.masked_fill(in_last_run & (eos_before > 0), 0)[:, 1:]


def check_ids(token_ids: Tensor) -> None:
    if not isinstance(token_ids, Tensor):
        raise ValueError(f"token_ids is a {type(token_ids).__name__}, expected a tensor [batch, tokens]")


def known_eos_ids(eos_token_ids: Iterable[int]) -> list[int]:
    """The ids in order, of any container, a tensor or a generator too; anything else is a ValueError."""
    try:
        return sorted({index(token_id) for token_id in eos_token_ids})
    except TypeError:
        raise ValueError(
            f"eos_token_ids is {eos_token_ids}, expected a collection of token ids such as {{2}}"
        ) from None


def last_model_run(env_mask: Tensor) -> Tensor:
    """True on the last run of consecutive ones of each row: `0 1 1 0 1 1 0` -> `. . . . T T .`. [B, T] -> [B, T]."""
    is_model = env_mask.bool()
    run_id = (~is_model).cumsum(dim=1)  # constant within a run of ones, different between runs
    last_id = torch.where(is_model, run_id, -1).amax(dim=1, keepdim=True)
    return is_model & (run_id == last_id)


def check_env_mask(env_mask: Tensor) -> None:
    """Raise ValueError unless `env_mask` is [B, T] and holds only 0 and 1."""
    if not isinstance(env_mask, Tensor):
        raise ValueError(f"env_mask is a {type(env_mask).__name__}, expected a tensor [batch, tokens]")
    if env_mask.dim() != 2:
        raise ValueError(f"env_mask has shape {tuple(env_mask.shape)}, expected [batch, tokens]")
    foreign = env_mask[(env_mask != 0) & (env_mask != 1)]
    if foreign.numel():
        raise ValueError(
            f"env_mask holds {foreign[0].item()}, expected only 0 (environment) and 1 (sampled); "
            "a weight per token belongs into the advantages"
        )


def select(values: Tensor, keep: Tensor, neutral: float = 0.0) -> Tensor:
    """`values` where `keep` is 1, `neutral` elsewhere: what stands at a 0 position cannot reach the result.

    Args:
        values: [B, T], or [B, 1] for one value per row, which is kept where its row keeps anything.
        keep: [B, T], 1 = keep.
    """
    keep = keep.bool()
    if values.size(1) != keep.size(1):
        keep = keep.any(dim=1, keepdim=True)
    return torch.where(keep, values, torch.full_like(values, neutral))
