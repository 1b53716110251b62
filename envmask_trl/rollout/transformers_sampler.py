"""Samples with a transformers model's own `generate`. Knows tensors of ids and the model: no text, no tools."""

from collections.abc import Collection, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from .model_and_tokenizer import check_pair
from .samplers import Context, Sample


class TransformersSampler:
    """One `generate` call per round over all live rollouts, left-padded, each row under its own budget.

    Example:
        sampler = TransformersSampler(model, tokenizer, temperature=0.7)
        sampler.sample([Context(0, (1, 2, 3))], [64])

    Args:
        model: any causal language model.
        tokenizer: for the pad and eos ids, and for stop strings.
        do_sample, temperature, top_p, top_k: as in `transformers.GenerationConfig`; `do_sample=False` is greedy.
        stop_token_ids: every id that ends a turn; by default those of the tokenizer and the model's generation config.
        stop_strings: texts that end a turn; the token that completes one is the turn's last.
        generation_kwargs: further fields of `GenerationConfig`.

    Raises:
        ValueError: a name in place of a model, or a tokenizer with more ids than the model's embedding has rows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        do_sample: bool = True,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop_token_ids: Collection[int] | None = None,
        stop_strings: Sequence[str] = (),
        generation_kwargs: dict[str, Any] | None = None,
    ):
        check_pair(model, tokenizer)
        self.model: Any = model
        self.stop_ids = frozenset(find_stop_token_ids(tokenizer, model) if stop_token_ids is None else stop_token_ids)
        self.stop_strings = StopStringCriteria(tokenizer, list(stop_strings)) if stop_strings else None
        self.config = generation_config(
            tokenizer,
            self.stop_ids,
            {"do_sample": do_sample, "temperature": temperature, "top_p": top_p, "top_k": top_k}
            | (generation_kwargs or {}),
        )

    def sample(self, contexts: list[Context], max_new_tokens: list[int]) -> list[Sample]:
        if not contexts:
            return []
        width = max(len(context.token_ids) for context in contexts)
        ids = torch.full((len(contexts), width), self.config.pad_token_id)
        attention_mask = torch.zeros_like(ids)
        for row, context in enumerate(contexts):
            ids[row, width - len(context.token_ids) :] = torch.tensor(context.token_ids)
            attention_mask[row, width - len(context.token_ids) :] = 1
        self.config.max_new_tokens = max(max_new_tokens)
        device = self.model.device
        stops = FirstStops(self.stop_strings, len(contexts))
        with evaluating(self.model), torch.no_grad():
            output = self.model.generate(
                input_ids=ids.to(device),
                attention_mask=attention_mask.to(device),
                generation_config=self.config,
                stopping_criteria=StoppingCriteriaList([RowBudgets(width, max_new_tokens), stops]),
            )
        rows = zip(output[:, width:].tolist(), max_new_tokens, stops.widths, strict=True)
        return [
            cut_at_stop(row, budget, self.stop_ids, None if stop is None else stop - width)
            for row, budget, stop in rows
        ]


def generation_config(
    tokenizer: PreTrainedTokenizerBase, stop_ids: Collection[int], options: dict[str, Any]
) -> GenerationConfig:
    """transformers' config of these options; what only sampling knows is left out where they are greedy."""
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(stop_ids)
    if not options["do_sample"]:
        options = {name: value for name, value in options.items() if name not in ("temperature", "top_p", "top_k")}
    ids = {"pad_token_id": pad_id, "eos_token_id": sorted(stop_ids)}
    return GenerationConfig(**(ids | {"disable_compile": True} | options))


class RowBudgets(StoppingCriteria):
    """Stops a row when it has sampled as many tokens as its own budget allows."""

    def __init__(self, prompt_width: int, max_new_tokens: list[int]):
        self.last_width = torch.tensor(max_new_tokens) + prompt_width

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return (self.last_width <= input_ids.size(1)).to(input_ids.device)


class FirstStops(StoppingCriteria):
    """Stops a row at its first stop string, and knows where that was: `generate` goes on with padding behind it."""

    def __init__(self, criterion: StopStringCriteria | None, num_rows: int):
        self.criterion: Any = criterion
        self.widths: list[int | None] = [None] * num_rows  # of each row when it stopped, its prompt included

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        if self.criterion is None:
            return torch.zeros(input_ids.size(0), dtype=torch.bool, device=input_ids.device)
        stopped = self.criterion(input_ids, scores)
        for row, is_stopped in enumerate(stopped.tolist()):
            if is_stopped and self.widths[row] is None:
                self.widths[row] = input_ids.size(1)
        return stopped


def cut_at_stop(row: list[int], budget: int, stop_ids: Collection[int], stop_at: int | None = None) -> Sample:
    """What one row sampled: up to its first stop token, which belongs to it, to `stop_at`, or to its budget."""
    for position, token_id in enumerate(row[:budget]):
        if token_id in stop_ids or position + 1 == stop_at:
            return Sample(tuple(row[: position + 1]), None, "stop")
    return Sample(tuple(row[:budget]), None, "length")


def find_stop_token_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> set[int]:
    """Every id that ends a turn: the tokenizer's eos and those of the model's generation config.

    Raises:
        ValueError: neither names one.
    """
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = {declared} if isinstance(declared, int) else set(declared or ())
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise ValueError(
            "neither the tokenizer nor the model's generation config has an eos token; set tokenizer.eos_token"
        )
    return ids


@contextmanager
def evaluating(model: PreTrainedModel):
    """Dropout off inside, the former mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
