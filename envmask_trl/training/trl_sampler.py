"""Samples with whatever TRL is configured for: vLLM (colocate or server), continuous batching, `generate`."""

from typing import TYPE_CHECKING, Any

from ..rollout.samplers import Context, Sample
from ..rollout.transformers_sampler import cut_at_stop

if TYPE_CHECKING:
    from ._trl import HookedGRPOTrainer


class TRLSampler:
    """One call of TRL's engine per round.

    Processes whose engine waits for all of them are given equally many prompts: an engine that slices its results by
    process otherwise hands one process the completions of another. The extra prompts are dropped again.

    Example:
        TRLSampler(trainer).sample([Context(0, (1, 2, 3))], [64])
    """

    def __init__(self, trainer: "HookedGRPOTrainer"):
        self.trainer = trainer
        self.stop_ids = frozenset(trainer.eos_token_ids)
        options: Any = trainer.args.generation_kwargs or {}
        self.stops_at_texts = any(options.get(name) for name in ("stop", "stop_strings"))

    def sample(self, contexts: list[Context], max_new_tokens: list[int]) -> list[Sample]:
        rows, budget = self.trainer.max_over_processes(len(contexts), max(max_new_tokens, default=1))
        prompts = [list(context.token_ids) for context in contexts]
        if self.trainer.engine_waits:
            prompts += [[min(self.stop_ids)]] * (rows - len(prompts))
        if not prompts:
            return []
        all_ids, all_logprobs = self.trainer.sample_turn(prompts, max_new_tokens=budget)
        if len(all_ids) != len(prompts):
            raise ValueError(f"the engine returned {len(all_ids)} turns for {len(prompts)} prompts")
        return [
            with_logprobs(self.ended(list(ids), row_budget), logprobs)
            for ids, logprobs, row_budget in zip(
                all_ids[: len(contexts)], all_logprobs[: len(contexts)], max_new_tokens, strict=True
            )
        ]

    def ended(self, ids: list[int], budget: int) -> Sample:
        """One row's turn; where the engine stops at texts, too, one that is shorter than was asked for ended at one."""
        at_text = self.stops_at_texts and len(ids) < budget
        return cut_at_stop(ids, budget, self.stop_ids, len(ids) if at_text else None)


def with_logprobs(sample: Sample, logprobs: list[float | None] | None) -> Sample:
    """The sample with the engine's log-probs, cut where its ids were; one that the engine could not tell is NaN."""
    if logprobs is None:
        return sample
    kept = logprobs[: len(sample.token_ids)]
    return Sample(
        sample.token_ids, tuple(float("nan") if value is None else value for value in kept), sample.finish_reason
    )
