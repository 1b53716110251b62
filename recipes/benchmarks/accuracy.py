"""How exact the log-probs and gradients of both forwards are, by a reference in float64. Knows trainers: no times.

exact    TRL's padded forward in float64, rotary angles too; its fused LM head alone stays float32
padded   TRL's forward in float32: rows of a batch padded on the left, so that positions begin late
shared   this library's forward in float32, as trees

transformers computes rotary angles in float32 whatever the model is. At position p an angle is off by up to p * 6e-8,
and left padding moves p. `ExactRotary` in the float32 forwards shows how much of a difference is that.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .results import Check, Figure, Result, relative_difference
from .steps import BASE, QUICK, described, given
from .trainers import Step, make_trainer, run_step
from .workloads import Workload, make_workload

BAR = 1e-5
IN_DOUBLE = 1e-6  # what the float32 head leaves
Scored = dict[tuple[tuple[int, ...], ...], Tensor]  # prompt and completion -> the log-probs of trained tokens


class ExactRotary(nn.Module):
    """Cosines and sines from float64 angles."""

    def __init__(self, rope_theta: float, head_dim: int) -> None:
        super().__init__()
        self.inverse_frequencies = rope_theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids.double().unsqueeze(-1) * self.inverse_frequencies  # [B, T, head_dim / 2]
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)


def logprob_accuracy(*, quick: bool, repeats: int) -> Result:
    """(accuracy) Log-probs and gradients of the padded and the shared forward against float64."""
    workload = make_workload(QUICK if quick else BASE.smaller(rollouts=16, micro_batch=16))
    exact = scored(workload, "trl", dtype=torch.float64, exact_rotary=True)
    figures, found = [], {}
    for rotary in ("transformers", "exact"):
        for side, name in (("trl", "padded"), ("ours", "shared")):
            found[name, rotary] = scored(workload, side, exact_rotary=rotary == "exact")
            figures += compared(f"{name} against float64, {rotary} angles", exact, found[name, rotary])
        figures += compared(f"shared against padded, {rotary} angles", found["padded", rotary], found["shared", rotary])
    in_double = scored(workload, "ours", dtype=torch.float64, exact_rotary=True)
    log_probs, gradients = compared("", exact, in_double)
    checks = [
        Check("shared in float64: log-probs", log_probs.value, IN_DOUBLE),
        Check("shared in float64: gradients", gradients.value, IN_DOUBLE),
    ]
    return Result("accuracy", "log-probs and gradients", figures, checks, workload=described(workload))


def compared(name: str, expected: tuple[Scored, Step], found: tuple[Scored, Step]) -> list[Figure]:
    """The largest difference of a log-prob, and that of all gradients over their norm."""
    assert set(expected[0]) == set(found[0])
    largest = max((found[0][row].double() - value.double()).abs().max().item() for row, value in expected[0].items())
    relative = relative_difference(expected[1].gradients, found[1].gradients)
    return [
        Figure(f"log-probs, {name}", largest, "absolute", bar=BAR, at_most=True),
        Figure(f"gradients, {name}", relative, "relative", bar=BAR, at_most=True),
    ]


def scored(
    workload: Workload, side: str, *, dtype: torch.dtype = torch.float32, exact_rotary: bool = False
) -> tuple[Scored, Step]:
    """One step over finished rollouts. With two iterations TRL records the policy's log-probs before the first."""
    trainer = make_trainer(side, workload, rollout_func=given(workload), num_iterations=2)
    trainer.model.to(dtype)
    if exact_rotary:
        config: Any = trainer.model.config
        trainer.model.model.rotary_emb = ExactRotary(config.rope_parameters["rope_theta"], config.head_dim)
    step = run_step(trainer, workload)
    rows: Scored = {}
    for batch in step.micro_batches:
        trained = (batch["completion_mask"] * batch["tool_mask"]).bool()
        columns = zip(batch["prompt_ids"], batch["completion_ids"], batch["old_per_token_logps"], trained, strict=True)
        for prompt, completion, log_probs, mask in columns:
            rows[tuple(prompt.tolist()), tuple(completion.tolist())] = log_probs[mask]
    return rows, step
