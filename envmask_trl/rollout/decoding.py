"""Decodes one turn for a batch of rows, token by token. Knows tensors: no rollouts, no text.

Rows stop one by one. Those that stopped stay as holes until a quarter of the batch has, and are then taken out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .kv_rows import KVRows
from .samplers import FinishReason, Sample

LEAVE_AT = 0.25  # the share of stopped rows at which they are taken out of the batch

Forward = Callable[[Tensor, Tensor, KVRows], Tensor]  # ids [R, N], is_token [R, N], cache -> the next logits [R, V]


@dataclass(slots=True)
class Turn:
    """What a row has sampled so far in this turn, and where its keys are.

    Example:
        Turn(budget=64, draws=torch.rand(64), token_ids=[10, 11, 19], finish_reason="stop")
    """

    budget: int
    draws: Tensor | None  # [budget] uniform random numbers; None is greedy
    told: Callable[[Sample], None] | None = None  # is told the turn when it ends, while others go on
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    home: KVRows | None = None
    place: int = 0  # its row in `home`

    @property
    def sample(self) -> Sample:
        return Sample(tuple(self.token_ids), tuple(self.logprobs), self.finish_reason)


@dataclass(slots=True)
class Decoder:
    """The decoding loop of one round.

    Args:
        forward: runs the model on new tokens.
        processors: from logits to the scores that are sampled from.
        criteria: say which rows stop; the rows' budgets are kept beside them.
        pad_id: what stopped rows are fed.
    """

    forward: Forward
    processors: Callable[..., Any]  # a LogitsProcessorList
    criteria: Callable[..., Any]  # a StoppingCriteriaList
    pad_id: int

    def run(self, turns: list[Turn], history: Tensor, cache: KVRows, logits: Tensor) -> None:
        """Fill `turns`; a row's last token is not forwarded.

        Args:
            history: [R, T] ids so far, left-padded, as the processors want them.
            cache: the keys of all of them.
            logits: [R, V] for the next token.
        """
        device = logits.device
        budgets = torch.tensor([turn.budget for turn in turns], device=device)
        draws = stacked_draws(turns, device)
        live = torch.ones(len(turns), dtype=torch.bool, device=device)
        for step in range(max(turn.budget for turn in turns)):
            scores = self.processors(history, logits.float())
            tokens, logprobs = choose(scores, None if draws is None else draws[:, step])
            tokens = tokens.where(live, self.pad_id)
            history = torch.cat([history, tokens.unsqueeze(1)], dim=1)
            ended = self.criteria(history, scores)
            record(turns, live, tokens, logprobs, ended)
            live = live & ~ended & (budgets > step + 1)
            stopped = len(turns) - int(live.sum())
            if stopped == len(turns):
                break
            if stopped >= LEAVE_AT * len(turns):
                index, turns, cache = part(turns, cache, live)
                history, tokens, budgets, live = (state[index] for state in (history, tokens, budgets, live))
                draws = None if draws is None else draws[index]
            logits = self.forward(tokens.unsqueeze(1), live.long().unsqueeze(1), cache)
        settle(turns, cache)


def stacked_draws(turns: list[Turn], device: torch.device) -> Tensor | None:
    """[R, longest budget], or None if the turns are greedy."""
    draws = [turn.draws for turn in turns if turn.draws is not None]
    return pad_sequence(draws, batch_first=True).to(device) if draws else None


def choose(scores: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """One token per row and its log-prob, by inversion of the distribution function; greedy without draws.

    Args:
        scores: [R, V] processed logits.
        draws: [R] uniform in [0, 1).
    """
    logprobs = scores.log_softmax(dim=-1)
    if draws is None:
        tokens = scores.argmax(dim=-1)
    else:
        distribution = logprobs.exp().cumsum(dim=-1)
        total = distribution[:, -1:]
        below = torch.minimum(draws.unsqueeze(1) * total, total.nextafter(torch.zeros_like(total)))
        tokens = torch.searchsorted(distribution, below, right=True).squeeze(1)  # never a token of probability 0
    return tokens, logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)


def record(turns: list[Turn], live: Tensor, tokens: Tensor, logprobs: Tensor, ended: Tensor) -> None:
    """Append each live row's token."""
    states = zip(turns, live.tolist(), tokens.tolist(), logprobs.tolist(), ended.tolist(), strict=True)
    for turn, is_live, token, logprob, has_ended in states:
        if is_live:
            turn.token_ids.append(token)
            turn.logprobs.append(logprob)
            turn.finish_reason = "stop" if has_ended else "length"  # of the last token; the budget may be used up
            if turn.told is not None and (has_ended or len(turn.token_ids) == turn.budget):
                turn.told(turn.sample)


def part(turns: list[Turn], cache: KVRows, live: Tensor) -> tuple[Tensor, list[Turn], KVRows]:
    """The live rows in their new order, their turns and their cache; the others' turns keep where they are."""
    order, going_on, staying = cache.part(live.nonzero().squeeze(1).tolist())
    n = going_on.seen.size(0)
    settle([turns[row] for row in order[n:]], staying)
    return torch.tensor(order[:n], device=live.device), [turns[row] for row in order[:n]], going_on


def settle(turns: list[Turn], cache: KVRows) -> None:
    for place, turn in enumerate(turns):
        turn.home, turn.place = cache, place
