"""Both trainers over one workload, and what one training step of each took and gave. Knows TRL and this library.

The one private name of TRL here is `_generate`, the rollout phase of a step; it is timed, not changed.
"""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer

from .models import make_policy
from .policy import ScriptedCalls
from .timing import NOTHING, Spent
from .workloads import GROUP, Workload

SIDES = ("trl", "ours")
ROOM = 8_000  # tokens of a completion: more than any script has


@dataclass(slots=True)
class Step:
    """One training step: what its parts took, and what came of it.

    Example:
        Step(whole=Spent(9.1, 9.0), rollouts=Spent(5.0, 5.0), loss_part=Spent(3.9, 3.9), loss=0.02, gradients={...})
    """

    whole: Spent = NOTHING
    rollouts: Spent = NOTHING
    loss_part: Spent = NOTHING  # forward and backward
    loss_tokens: int = 0  # that the layers of the model are given for the loss, padding included
    loss: float = 0.0
    tool_s: float = 0.0  # in which a tool ran and nothing was sampled
    turn_s: list[float] = field(default_factory=list)  # of each `generate` call
    gradients: dict[str, Tensor] = field(default_factory=dict)
    rows: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)  # prompt, completion, env_mask of each rollout
    micro_batches: list[dict[str, Any]] = field(default_factory=list)


class Measured:
    """Mixed into a trainer: writes the latest step down."""

    latest: Step
    loss_began = NOTHING
    in_loss = False

    def _generate(self, prompts: list) -> tuple:
        start = Spent.now()
        output = super()._generate(prompts)  # type: ignore[misc]
        self.latest.rollouts += Spent.now() - start
        return output

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.latest.micro_batches.append(dict(inputs))
        self.loss_began, self.in_loss = Spent.now(), True
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.in_loss = False

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        self.latest.loss_part += Spent.now() - self.loss_began
        self.latest.loss += loss.item()
        return loss

    def count_tokens(self, layers: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """A hook before the model's layers."""
        if self.in_loss:
            self.latest.loss_tokens += kwargs["input_ids"].numel()


class TheirTrainer(Measured, GRPOTrainer):
    """TRL's own."""


class OurTrainer(Measured, EnvMaskGRPOTrainer):
    """This library's."""


class StepClock(TrainerCallback):
    """The time of a step, from before its rollouts to after the optimizer; and its gradients."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.start = trainer, NOTHING

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = Spent.now()

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        paused = Spent.now()
        self.trainer.latest.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        self.start += Spent.now() - paused

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.latest.whole = Spent.now() - self.start


def reward(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """Differs within a group and depends on every token."""
    return [sum(ids) % 11 / 10 for ids in completion_ids]


def make_trainer(
    side: str, workload: Workload, *, rollout_func: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """TRL's trainer or ours with the same weights, options and data."""
    trainer_class, config_class = (TheirTrainer, GRPOConfig) if side == "trl" else (OurTrainer, EnvMaskGRPOConfig)
    folder = tempfile.mkdtemp(prefix="envmask-benchmark-")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'rollout_func', which is an experimental feature")
        trainer: Any = trainer_class(
            make_policy(workload.model, workload.tokenizer, workload.script),
            reward,
            args=config_class(output_dir=folder, **step_options(workload), **options),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in workload.prompts]),
            processing_class=workload.tokenizer,
            tools=None if rollout_func else workload.tools,
            rollout_func=rollout_func,
        )
    weakref.finalize(trainer, shutil.rmtree, folder, ignore_errors=True)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StepClock(trainer))
    trainer.model.model.register_forward_pre_hook(trainer.count_tokens, with_kwargs=True)
    return trainer


def step_options(workload: Workload) -> dict[str, Any]:
    """The learning rate is 0, so that all steps are alike."""
    return {
        "per_device_train_batch_size": workload.micro_batch,
        "gradient_accumulation_steps": workload.rollouts // workload.micro_batch,
        "num_generations": GROUP,
        "max_completion_length": ROOM,
        "max_tool_calling_iterations": workload.turns,
        "learning_rate": 0.0,
        "max_steps": 1,
        "shuffle_dataset": False,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "report_to": "none",
    }


def run_step(trainer: Any, workload: Workload) -> Step:
    """Run one training step and return what it took and gave."""
    set_seed(0)
    workload.calls.clear()
    trainer.model.calls = ScriptedCalls()
    trainer.latest = step = Step()
    trainer.train()
    step.tool_s, step.turn_s = workload.waited_s(trainer.model.calls.spans), trainer.model.calls.seconds
    step.rows = {row for batch in step.micro_batches for row in rows_of(batch)}
    return step


def rows_of(batch: dict[str, Any]) -> list[tuple[tuple[int, ...], ...]]:
    """Prompt, completion and env_mask of each row, without padding."""
    columns = zip(
        batch["prompt_ids"],
        batch["prompt_mask"].bool(),
        batch["completion_ids"],
        batch["completion_mask"].bool(),
        batch["tool_mask"],
        strict=True,
    )
    return [
        (tuple(prompt[p].tolist()), tuple(completion[c].tolist()), tuple(mask[c].tolist()))
        for prompt, p, completion, c, mask in columns
    ]
