"""Samples with a transformers model whose keys and values are kept from turn to turn. Knows ids and tensors: no text.

`generate` encodes the whole history again in every turn, for every member of a group, and decodes all rows until the
slowest one stops. Here a prompt is encoded once, a turn encodes only what is new, and a row that stopped leaves.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MaxLengthCriteria,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)

from .decoding import Decoder, Turn
from .keepable import forward_arguments, why_not_kept, why_not_row_by_row
from .kept_rows import Kept, alone, by_home, continues
from .kv_rows import KVRows
from .model_and_tokenizer import check_pair
from .samplers import Context, Sample
from .transformers_sampler import evaluating, find_stop_token_ids, generation_config

SEEDS = 2**62


class KeptCacheSampler:
    """Samples turns and keeps each rollout's keys and values between them.

    What a row samples depends on the seed, its id and its own tokens, not on the rows beside it: every row draws from
    a generator of its own, seeded from torch's global one when the row is first seen. Rows that are absent from a call
    and not parked are forgotten, and all of them after an optimizer step; after any other change of the weights
    (merging an adapter, say) call `forget`.

    Example:
        sampler = KeptCacheSampler(model, tokenizer, temperature=0.7)
        run_rollouts(prompts, tokenizer=tokenizer, sampler=sampler, tools=[search])

    Args:
        model: a decoder-only language model, perhaps inside PEFT, whose layers all keep every key.
        tokenizer: for the pad and eos ids, and for stop strings.
        do_sample, temperature, top_p, top_k: as in `transformers.GenerationConfig`; `do_sample=False` is greedy.
        stop_token_ids: every id that ends a turn; by default those of the tokenizer and the model's generation config.
        stop_strings: texts that end a turn.
        generation_kwargs: further fields of `GenerationConfig`, applied by transformers' own processors.
        overlap_tools: rollouts go on while tools of others are at work; False is for tools that use the model, too.

    Raises:
        ValueError: the model's cache cannot be kept, see `why_not_kept`, or an option needs more than a row's tokens;
            a model's name in place of a model, or a tokenizer with more ids than the model's embedding has rows.
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
        overlap_tools: bool = True,
    ):
        check_pair(model, tokenizer)
        if reason := why_not_kept(model):
            raise ValueError(f"{reason}; use TransformersSampler")
        self.model: Any = model
        self.stop_ids = frozenset(find_stop_token_ids(tokenizer, model) if stop_token_ids is None else stop_token_ids)
        self.config = generation_config(
            tokenizer,
            self.stop_ids,
            {"do_sample": do_sample, "temperature": temperature, "top_p": top_p, "top_k": top_k}
            | (generation_kwargs or {}),
        )
        if reason := why_not_row_by_row(self.config, model):
            raise ValueError(f"{reason}; use TransformersSampler")
        self.criteria = StoppingCriteriaList(
            [StopStringCriteria(tokenizer, list(stop_strings))] if stop_strings else []
        )
        self.overlap_tools = overlap_tools
        self.cache_argument = "cache" if "cache" in forward_arguments(model) else "past_key_values"
        self.forget()

    def forget(self) -> None:
        """Drop all keys and values."""
        self.kept: dict[int, Kept] = {}
        self.turns = 0  # of the rollout that is furthest
        self.weights = weights_version(self.model)

    def sample(
        self,
        contexts: list[Context],
        max_new_tokens: list[int],
        *,
        parked: Collection[int] = (),
        on_turn: Callable[[int, Sample], None] | None = None,
    ) -> list[Sample]:
        """One turn of each row; the keys of `parked` rows, which are absent, are kept. See `OverlappingSampler`."""
        if not contexts:
            return []
        if self.weights != weights_version(self.model):
            self.forget()
        self.recall(contexts, parked)
        turns = [
            Turn(n, self.draws(context, n), told=on_turn and partial(on_turn, row))
            for row, (context, n) in enumerate(zip(contexts, max_new_tokens, strict=True))
        ]
        with evaluating(self.model), torch.no_grad():
            self.decode(contexts, turns)
        for context, turn in zip(contexts, turns, strict=True):
            kept = self.kept[context.id]
            kept.token_ids = (*context.token_ids, *turn.token_ids[:-1])  # the last one was not forwarded
            kept.home, kept.place = turn.home, turn.place
            kept.turns += 1
        return [turn.sample for turn in turns]

    def recall(self, contexts: list[Context], parked: Collection[int] = ()) -> None:
        """Keep what these contexts continue and what is parked; a context that continues nothing starts anew."""
        before = self.kept
        self.kept = {row: before[row] for row in parked if row in before}
        alone(list(self.kept.values()))
        found = {context.id: before[context.id] for context in contexts if context.id in before}
        known = {context.id: found[context.id] for context in contexts if continues(context, found.get(context.id))}
        seed = self.next_seed(list(known.values()), any_new=len(known) < len(contexts))
        for context in contexts:
            self.kept[context.id] = known.get(context.id) or Kept(
                torch.Generator().manual_seed((seed + context.id * 0x9E3779B97F4A7C15) % SEEDS)
            )

    def next_seed(self, known: Sequence[Kept], *, any_new: bool) -> int:
        """Moves torch's generator once for each turn of the furthest row: how rows are spread over calls is timing."""
        if not known and len(self.kept) == 0:
            self.turns = 0
        turn = max((kept.turns for kept in known), default=0)
        moves = any_new or turn == self.turns
        self.turns = max(self.turns, turn + 1)
        return int(torch.randint(SEEDS, ())) if moves else 0

    def draws(self, context: Context, budget: int) -> Tensor | None:
        return torch.rand(budget, generator=self.kept[context.id].generator) if self.config.do_sample else None

    def decode(self, contexts: list[Context], turns: list[Turn]) -> None:
        """Let `generate` prepare processors and stopping criteria, and decode with them."""
        # A pad token that is the eos would be penalised in shorter rows; a row's own tokens are so anyway.
        filler = self.config.pad_token_id if self.config.no_repeat_ngram_size else None
        history = left_padded([context.token_ids for context in contexts], filler, self.model.device)

        def loop(model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, **_: Any) -> Tensor:
            criteria = StoppingCriteriaList(c for c in stopping_criteria if not isinstance(c, MaxLengthCriteria))
            decoder = Decoder(self.forward, logits_processor, criteria, self.config.pad_token_id)
            order, cache, logits = self.encode(contexts)
            decoder.run([turns[row] for row in order], input_ids[order], cache, logits)
            return input_ids

        self.config.max_new_tokens = max(turn.budget for turn in turns)
        self.model.generate(
            input_ids=history,
            attention_mask=torch.ones_like(history),
            generation_config=self.config,
            stopping_criteria=self.criteria,
            custom_generate=loop,
        )

    def encode(self, contexts: list[Context]) -> tuple[list[int], KVRows, Tensor]:
        """Forward what is new of each context; the order of the rows, their cache and their next logits [R, V]."""
        new = [row for row, context in enumerate(contexts) if self.kept[context.id].home is None]
        old = [row for row, context in enumerate(contexts) if self.kept[context.id].home is not None]
        caches, logits = [], []
        if new:
            cache, next_logits = self.encode_prompts([contexts[row].token_ids for row in new])
            caches.append(cache)
            logits.append(next_logits)
        if old:
            old, cache, next_logits = self.encode_news(old, contexts)
            caches.append(cache)
            logits.append(next_logits)
        cache = caches[0] if len(caches) == 1 else KVRows.gather([(c, range(c.seen.size(0))) for c in caches])
        return new + old, cache, torch.cat(logits)

    def encode_prompts(self, prompts: list[tuple[int, ...]]) -> tuple[KVRows, Tensor]:
        """Each distinct prompt once."""
        distinct = list(dict.fromkeys(prompts))
        cache = KVRows.empty(len(distinct), device=self.model.device)
        logits = self.forward_ragged(distinct, cache)
        rows = [distinct.index(prompt) for prompt in prompts]
        return cache.take(rows), logits[rows]

    def encode_news(self, rows: list[int], contexts: list[Context]) -> tuple[list[int], KVRows, Tensor]:
        """The tokens that came since these rows' last turn."""
        order: list[int] = []
        parts: list[tuple[KVRows, list[int]]] = []
        for together in by_home([self.kept[contexts[row].id] for row in rows]):
            kept = [self.kept[contexts[rows[place]].id] for place in together]
            assert kept[0].home is not None
            parts.append((kept[0].home, [one.place for one in kept]))
            order += [rows[place] for place in together]
        cache = KVRows.gather(parts)
        parts.clear()
        for row in order:
            self.kept[contexts[row].id].home = None  # so that the forward does not hold it beside the copy
        news = [contexts[row].token_ids[len(self.kept[contexts[row].id].token_ids) :] for row in order]
        return order, cache, self.forward_ragged(news, cache)

    def forward_ragged(self, rows: Sequence[tuple[int, ...]], cache: KVRows) -> Tensor:
        """The logits after each row's last token, [R, V]."""
        ids = left_padded(rows, self.config.pad_token_id, self.model.device)
        lengths = torch.tensor([len(row) for row in rows], device=ids.device)
        is_token = torch.arange(ids.size(1), device=ids.device) >= (ids.size(1) - lengths).unsqueeze(1)
        return self.forward(ids, is_token.long(), cache)

    def forward(self, ids: Tensor, is_token: Tensor, cache: KVRows) -> Tensor:
        output = self.model(
            input_ids=ids,
            use_cache=True,
            logits_to_keep=1,
            **cache.extend(is_token),
            **{self.cache_argument: cache.cache},
        )
        return output.logits[:, -1]


def left_padded(rows: Sequence[Sequence[int]], pad_id: int | None, device: torch.device) -> Tensor:
    """[R, longest]; None repeats each row's own first token."""
    width = max(map(len, rows))
    fill = [row[0] if pad_id is None else pad_id for row in rows]
    filled = [[pad] * (width - len(row)) + list(row) for row, pad in zip(rows, fill, strict=True)]
    return torch.tensor(filled, device=device)


def weights_version(model: PreTrainedModel) -> int:
    """A number that grows with every change in place, such as an optimizer step."""
    return sum(parameter._version for parameter in model.parameters())
