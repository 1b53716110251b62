"""Which sampler plays a generation batch. Knows the trainer and the samplers: no turns, no loss."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers.utils import logging

from ..rollout.keepable import why_not_kept, why_not_row_by_row
from ..rollout.kept_cache import KeptCacheSampler
from ..rollout.samplers import Sampler
from ..rollout.search.tag_protocol import TagProtocol
from ._trl import SHARDING
from .config import EnvMaskGRPOConfig
from .trl_sampler import TRLSampler

if TYPE_CHECKING:
    from .trainer import EnvMaskGRPOTrainer

logger = logging.get_logger(__name__)
NO_TAG_STOPS = "cannot stop at a closing tag: turns run to their end or budget, and are cut behind the tag"


def keeps_cache(trainer: "EnvMaskGRPOTrainer") -> bool:
    """Whether `KeptCacheSampler` plays this trainer's rollouts; says why not where a user would expect it.

    Raises:
        ValueError: `sampler="kept_cache"` was asked for and cannot be had.
    """
    wanted = trainer.args.sampler
    if wanted == "trl" or (wanted == "auto" and engine_name(trainer) != "generate"):
        return False
    reason = f"the rollouts are sampled by {engine_name(trainer)}" if engine_name(trainer) != "generate" else None
    reason = reason or why_not_local(trainer) or why_not_kept(trainer.model)
    if reason and wanted == "kept_cache":
        raise ValueError(f"sampler='kept_cache' cannot be used: {reason}; use sampler='auto'")
    if reason:
        logger.warning(f"{reason}: every turn encodes its whole history again")
    return reason is None


@contextmanager
def open_sampler(trainer: "EnvMaskGRPOTrainer") -> Iterator[Sampler]:
    """The sampler of one generation batch, made anew for each: no cache outlives the weights it was made with."""
    if trainer.sampler is not None or not trainer.keeps_cache:
        if trainer.protocol is not None and trainer.sampler is None and not trainer.use_vllm:
            logger.warning_once(f"{engine_name(trainer)} {NO_TAG_STOPS}")
        yield trainer.sampler or TRLSampler(trainer)
        return
    with trainer.generating_model() as model:
        yield KeptCacheSampler(
            model,
            trainer.processing_class,
            stop_token_ids=trainer.eos_token_ids,
            stop_strings=stop_strings(trainer),
            generation_kwargs=sampling_options(trainer),
            overlap_tools=trainer.args.overlap_tools,
        )


def engine_stops_at(args: EnvMaskGRPOConfig, protocol: TagProtocol | None) -> EnvMaskGRPOConfig:
    """The options under which vLLM ends a turn at the protocol's closing tags; `args` itself where nothing changes.

    `KeptCacheSampler` is told them directly. TRL passes no tokenizer to `generate`, so there the loop cuts afterwards.
    """
    if protocol is None or not args.use_vllm:
        return args
    told, given = copy.copy(args), args.generation_kwargs or {}
    assert isinstance(given, dict)  # a string from the command line is decoded by the config
    stops = [*protocol.stop_strings, *texts(given.get("stop"))]
    told.generation_kwargs = {**given, "stop": stops, "include_stop_str_in_output": True}
    return told


def engine_name(trainer: "EnvMaskGRPOTrainer") -> str:
    """What TRL itself would sample with."""
    if trainer.use_vllm:
        return "vLLM"
    return "continuous batching" if trainer.use_transformers_continuous_batching else "generate"


def why_not_local(trainer: "EnvMaskGRPOTrainer") -> str | None:
    """Why this process cannot run the model by itself; None if it can."""
    distributed_type = trainer.accelerator.distributed_type
    if distributed_type in SHARDING:
        return f"the weights may be spread over processes ({distributed_type.value})"
    if trainer.generation_kwargs.get("cache_implementation") not in (None, "dynamic"):
        return f"cache_implementation is {trainer.generation_kwargs['cache_implementation']!r}"
    return why_not_row_by_row(trainer.generation_config, trainer.model)


def stop_strings(trainer: "EnvMaskGRPOTrainer") -> list[str]:
    """The protocol's closing tags, and those of `generation_kwargs`, one text or several."""
    own = trainer.protocol.stop_strings if trainer.protocol else ()
    return [*own, *texts(trainer.generation_kwargs.get("stop_strings"))]


def texts(given: str | Sequence[str] | None) -> list[str]:
    """One text or several, as engines take them."""
    return [given] if isinstance(given, str) else list(given or ())


def sampling_options(trainer: "EnvMaskGRPOTrainer") -> dict[str, Any]:
    """Fields of `GenerationConfig` that say how a token is sampled."""
    apart = ("max_new_tokens", "cache_implementation", "eos_token_id", "stop_strings")
    return {name: value for name, value in trainer.generation_kwargs.items() if name not in apart}
