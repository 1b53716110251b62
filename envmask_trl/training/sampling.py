"""Which sampler plays a generation batch. Knows the trainer and the samplers: no turns, no loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transformers.utils import logging

from ..rollout.kept_cache import KeptCacheSampler, why_not_kept
from ..rollout.samplers import Sampler
from .trl_sampler import TRLSampler

if TYPE_CHECKING:
    from .trainer import EnvMaskGRPOTrainer

logger = logging.get_logger(__name__)


def keeps_cache(trainer: "EnvMaskGRPOTrainer") -> bool:
    """Whether `KeptCacheSampler` plays this trainer's rollouts; says why not where a user would expect it.

    Raises:
        ValueError: `sampler="kept_cache"` was asked for and cannot be had.
    """
    wanted = trainer.args.sampler
    if wanted == "trl" or (wanted == "auto" and trainer.engine_name != "generate"):
        return False
    reason = f"the rollouts are sampled by {trainer.engine_name}" if trainer.engine_name != "generate" else None
    reason = reason or trainer.why_not_local() or why_not_kept(trainer.model)
    if reason and wanted == "kept_cache":
        raise ValueError(f"sampler='kept_cache' cannot be used: {reason}; use sampler='auto'")
    if reason:
        logger.warning(f"{reason}: every turn encodes its whole history again")
    return reason is None


@contextmanager
def open_sampler(trainer: "EnvMaskGRPOTrainer") -> Iterator[Sampler]:
    """The sampler of one generation batch, made anew for each: no cache outlives the weights it was made with."""
    if trainer.sampler is not None or not trainer.keeps_cache:
        yield trainer.sampler or TRLSampler(trainer)
        return
    with trainer.generating_model() as model:
        yield KeptCacheSampler(
            model,
            trainer.processing_class,
            stop_token_ids=trainer.eos_token_ids,
            generation_kwargs=trainer.sampling_options,
        )
