"""Supervised warm start on the demonstrations, with the observation mask. Knows how to optimise, nothing of the tasks.

A plain loop: at this size `trl.SFTTrainer`, which takes the same rows, spends more on bookkeeping than on the model.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import get_json_schema

from envmask_trl import mask_observations

from .optimizer import MuonWithAdamW

EVERY_S = 4.0  # from one line of progress to the next
BATCH_SIZE = 8  # small batches learn to copy sooner than large ones in the same time
NEIGHBOURHOOD = 4  # batches whose rows are sorted by length together
MUON_LEARNING_RATE = 0.005  # matrices; with AdamW alone copying is not learned within minutes
ADAMW_LEARNING_RATE = 5e-3  # embeddings and norms
MAX_GRAD_NORM = 1.0
FINAL_SHARE = 0.1  # what is left of the learning rates at the end
IGNORED = -100  # the label of what the model did not write

Row = tuple[list[int], list[int]]  # ids and labels


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    *,
    tools: list[Callable],
    decay_from: float,
) -> None:
    """Train once through `rows`, in their order, on the tokens that a model would have written; see `learn`."""
    schemas = [get_json_schema(tool) for tool in tools]  # read once, not for each conversation
    neighbourhoods: DataLoader[list[Row]] = DataLoader(
        [row["messages"] for row in rows],  # type: ignore[arg-type]  # a list is all that is needed of a Dataset
        batch_size=NEIGHBOURHOOD * BATCH_SIZE,
        collate_fn=partial(encode, tokenizer=tokenizer, schemas=schemas),
        num_workers=1,  # encodes the next conversations while this process learns from the last
        prefetch_factor=8,
    )
    learn(model, neighbourhoods, steps=len(rows) // BATCH_SIZE, decay_from=decay_from)


def learn(model: PreTrainedModel, neighbourhoods: Iterable[list[Row]], *, steps: int, decay_from: float) -> None:
    """Train on encoded rows, which come by some batches together; see `batches_of_like_lengths`.

    From the share `decay_from` of the steps on, the learning rates fall linearly.
    """
    optimizer = MuonWithAdamW(model, muon_lr=MUON_LEARNING_RATE, adamw_lr=ADAMW_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(FINAL_SHARE, min(1.0, (1 - step / steps) / (1 - decay_from)))
    )
    model.train()
    started = printed = time.perf_counter()
    for step, batch in enumerate(batches_of_like_lengths(neighbourhoods)):
        loss = masked_loss(model, *zip(*batch, strict=True))
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        now = time.perf_counter()
        if now - printed > EVERY_S or step == steps - 1:
            printed = now
            print(f"SFT   {step + 1:>4}/{steps}  loss {loss.item():.2f}  {now - started:.0f} s", flush=True)


def encode(conversations: list[list[dict]], *, tokenizer: PreTrainedTokenizerBase, schemas: list[dict]) -> list[Row]:
    """The ids of each conversation, and its labels: the same where the model would have written, otherwise -100."""
    encoded = mask_observations({"messages": conversations}, tokenizer=tokenizer, tools=schemas)
    return list(zip(encoded["input_ids"], encoded["labels"], strict=True))


def batches_of_like_lengths(neighbourhoods: Iterable[list[Row]]) -> Iterator[list[Row]]:
    """Each neighbourhood's rows in batches, a row with others of about its length: there is little padding then.

    Example, with rows of these lengths and batches of two:
        [[40, 90, 88, 41]] -> [88, 90], [40, 41]
    """
    rng = random.Random(0)
    for rows in neighbourhoods:
        by_length = sorted(rows, key=lambda row: len(row[0]))
        batches = [by_length[first : first + BATCH_SIZE] for first in range(0, len(by_length), BATCH_SIZE)]
        yield from rng.sample(batches, len(batches))


def masked_loss(model: PreTrainedModel, input_ids: Sequence[list[int]], labels: Sequence[list[int]]) -> torch.Tensor:
    """The mean negative log-likelihood of the labelled tokens; the others never reach the LM head."""
    ids, targets = (
        pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=padding)
        for rows, padding in ((input_ids, 0), (labels, IGNORED))
    )  # [B, T]; padding is on the right, where a causal model never sees it
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]  # [B, T-1, H]
    targets = targets[:, 1:]  # [B, T-1]
    written = targets != IGNORED
    return cross_entropy(model.lm_head(hidden[written]), targets[written])
