"""The model's own LM head where TRL's fused one gives other numbers. Knows tensors: no rows, no loss.

TRL multiplies hidden states by `lm_head.weight` by itself, and knows how a model scales or caps its logits by the names
of config fields. A model that does it otherwise would be trained on log-probs that it never samples with.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput, logging

from ..rollout.transformers_sampler import evaluating
from .micro_batches import IGNORED

logger = logging.get_logger(__name__)
PROBE = 4  # tokens that both heads score
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.1  # of a log-prob in float32, and in half precision


@dataclass
class Scores(ModelOutput):
    log_probs: Tensor | None = None  # [B, T-1], or [B, N] with labels that are shifted; 0 where nothing is scored
    entropy: Tensor | None = None
    aux_loss: Tensor | None = None


class OwnHead:
    """Scores labels as TRL's fused LM head does, from the logits of the model's own forward.

    Example:
        OwnHead(model, temperature=1.0)(input_ids=ids, attention_mask=mask, labels=labels).log_probs  # [B, T-1]
    """

    def __init__(self, model: Any, temperature: float):
        self.model, self.temperature = model, temperature

    def __call__(
        self,
        *,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        fused_lm_head: bool = True,
        **inputs: Any,
    ) -> Scores:
        output = self.model(**inputs, use_cache=False)
        logits = output.logits
        if shift_labels is None:
            assert labels is not None
            logits, shift_labels = logits[:, :-1], labels[:, 1:]
        logits = logits[:, -shift_labels.size(1) :]  # prompt learning puts columns of its own before a row
        is_scored = shift_labels != IGNORED
        distribution = (logits[is_scored].float() / self.temperature).log_softmax(dim=-1)  # [S, V]
        log_probs = distribution.gather(1, shift_labels[is_scored].unsqueeze(1)).squeeze(1)
        entropy = torch.special.entr(distribution.exp()).sum(dim=1)
        empty = log_probs.new_zeros(is_scored.shape)
        return Scores(
            log_probs=empty.masked_scatter(is_scored, log_probs),
            entropy=empty.masked_scatter(is_scored, entropy),
            aux_loss=output.get("aux_loss"),
        )

    @property
    def training(self) -> bool:
        return bool(self.model.training)

    def eval(self) -> None:
        self.model.eval()

    def train(self, mode: bool = True) -> None:
        self.model.train(mode)


class Heads:
    """Says with which head a model's tokens are scored: TRL's fused one, if both give the same numbers.

    Example:
        heads = Heads(temperature=1.0)
        heads.checked(model)(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs
    """

    def __init__(self, temperature: float):
        self.temperature = temperature
        self.known: dict[int, Any] = {}

    def checked(self, model: Any) -> Any:
        """The model itself or an `OwnHead` of it, said aloud; asked of each model once."""
        if id(model) not in self.known:
            own = OwnHead(model, self.temperature)
            reason = why_not_fused(model, own)
            if reason:
                logger.warning(f"log-probs are taken from all logits of the model's own forward: {reason}")
            self.known[id(model)] = own if reason else model
        return self.known[id(model)]


def why_not_fused(model: Any, own: OwnHead) -> str | None:
    """Why TRL's fused head does not score as the model's own forward does, on a few tokens; None if it does."""
    ids = torch.arange(1, PROBE + 1, device=next(model.parameters()).device).unsqueeze(0)
    probe: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids,
        "fused_lm_head": True,
    }
    with torch.no_grad(), evaluating(model):
        right = own(**probe).log_probs
        try:
            fused = model(**probe).log_probs
        except AttributeError as error:  # of an LM head that is no linear layer
            return f"TRL's fused LM head cannot read this model's ({error})"
    assert right is not None
    is_full = fused.dtype == torch.float32 and not torch.is_autocast_enabled(fused.device.type)
    difference = (fused - right).abs().max().item()
    if difference <= (TOLERANCE if is_full else HALF_TOLERANCE) or not right.isfinite().all():
        return None
    return f"TRL's fused LM head differs from it by up to {difference:.2g} in a log-prob, so it leaves something out"
