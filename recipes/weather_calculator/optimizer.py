"""Muon on the matrices of the layers, AdamW on embeddings and norms, stepped as one optimizer. Knows weights only.

torch.optim.Muon orthogonalises in bfloat16, one matrix at a time: right on a GPU, many times slower on a CPU.
"""

from itertools import groupby

import torch
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al., "Muon: An optimizer for hidden layers", 2024


class MuonWithAdamW(Optimizer):
    """Group 0 holds the matrices (Muon), group 1 the embeddings and norms (AdamW); schedules see both."""

    def __init__(self, model: PreTrainedModel, *, muon_lr: float, adamw_lr: float, momentum: float = 0.95) -> None:
        def is_matrix(name: str, weight: torch.Tensor) -> bool:
            return weight.ndim == 2 and "embed" not in name

        named = list(model.named_parameters())
        matrices = sorted((weight for name, weight in named if is_matrix(name, weight)), key=lambda w: tuple(w.shape))
        others = [weight for name, weight in named if not is_matrix(name, weight)]
        super().__init__([{"params": matrices, "lr": muon_lr}], {"momentum": momentum})
        self._adamw = AdamW(others, lr=adamw_lr, weight_decay=0.0)
        self.param_groups += self._adamw.param_groups

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # it takes no closure
        group = self.param_groups[0]
        for _, same in groupby(group["params"], key=lambda weight: weight.shape):
            weights = [weight for weight in same if weight.grad is not None]
            if weights:
                gradient = torch.stack([weight.grad for weight in weights])
                self._step_stacked(weights, gradient, lr=group["lr"], momentum=group["momentum"])
        self._adamw.param_groups[:] = self.param_groups[1:]  # loading a state makes new groups, and schedules see ours
        self._adamw.step()

    def _step_stacked(self, weights: list[torch.Tensor], gradient: torch.Tensor, *, lr: float, momentum: float) -> None:
        """One step for weights of equal shape; their gradients are stacked, [N, rows, columns]."""
        state = self.state[weights[0]]
        velocity = state.setdefault("velocity", torch.zeros_like(gradient))
        velocity.lerp_(gradient, 1 - momentum)
        update = orthogonalise(gradient.lerp(velocity, momentum))
        scale = lr * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
        for weight, direction in zip(weights, update, strict=True):
            weight.add_(direction, alpha=-scale)


def orthogonalise(matrices: torch.Tensor, *, steps: int = 5) -> torch.Tensor:
    """The nearest matrices with singular values near 1, by Newton-Schulz iteration; [N, rows, columns]."""
    a, b, c = _NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
