"""Logs what a step's rollouts and rewards show, and says when they look ill. Knows the order: not what is measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from transformers.utils import logging

from ..rollout.drift import DriftKind
from ..trajectory import Trajectory
from .metrics import length_metrics, mask_metrics, tool_metrics
from .row_facts import RowFacts, gather_facts, observation_openings
from .symptoms import Symptoms

if TYPE_CHECKING:
    from .trainer import EnvMaskGRPOTrainer

logger = logging.get_logger(__name__)


class StepLog:
    """The metrics and warnings of one trainer.

    Example:
        step_log = StepLog(trainer)
        step_log.rollouts(trajectories, columns)  # one collective: on every process, once a generation
        step_log.rewards(rewards_per_func)        # none: they are gathered already
        step_log.times()                          # whenever TRL logs
    """

    def __init__(self, trainer: "EnvMaskGRPOTrainer"):
        self.trainer = trainer
        own = trainer.protocol.tools if trainer.protocol is not None else {}
        self.tool_names = sorted({tool.__name__ for tool in trainer.tools or ()} | set(own))
        self.openings = observation_openings(trainer.encoder, self.tool_names)
        self.drift_kinds = tuple(DriftKind) if trainer.args.observation_mode == "diff" else ()
        self.symptoms = Symptoms(self.warn)
        self.timed_step = 0  # the optimizer step at which times were last logged

    def rollouts(self, trajectories: Sequence[Trajectory], columns: Mapping[str, list]) -> None:
        """Log the rollouts of all processes, under TRL's names where it has one.

        Args:
            trajectories: the rollouts of this process.
            columns: their rows after packing.
        """
        trainer = self.trainer
        facts = gather_facts(trajectories, columns, tokenizer=trainer.processing_class, openings=self.openings)
        check_any_started(facts)
        if trainer.model.training:
            seen = sum(row.prompt_tokens + row.sampled_tokens for row in facts)
            trainer.state.num_input_tokens_seen += seen
            self.symptoms.watch_rollouts(facts)
        metrics = {
            "num_tokens": trainer.state.num_input_tokens_seen,
            **length_metrics(facts),
            **mask_metrics(facts, drift_kinds=self.drift_kinds),
            **tool_metrics(facts, tool_names=self.tool_names),
        }
        for name, value in metrics.items():
            trainer.log_value(name, value)

    def rewards(self, rewards_per_func: Tensor) -> None:
        """Watch the rewards of all processes, [N, F], those that count."""
        if self.trainer.model.training:
            counted = rewards_per_func[:, self.trainer.reward_weights != 0]
            self.symptoms.watch_rewards(counted, group_size=int(self.trainer.num_generations or 1))

    def times(self) -> None:
        """Log this process's seconds per optimizer step, as TRL logs its step_time; no collective.

        An evaluation is logged as one step, together with what training had not logged before it.
        """
        trainer = self.trainer
        steps = trainer.state.global_step - self.timed_step if trainer.model.training else 1
        self.timed_step = trainer.state.global_step
        for name, value in trainer.times.metrics(steps=steps).items():
            trainer.log_value(name, value)

    def warn(self, sentence: str) -> None:
        if self.trainer.accelerator.is_main_process:
            logger.warning(sentence)


def check_any_started(facts: Sequence[RowFacts]) -> None:
    """Raise, on every process alike, when no rollout of a generation began because no environment could be reset."""
    errors = [row.error for row in facts if row.error and not row.turns]
    if errors and len(errors) == len(facts):
        raise ValueError(
            f"no environment could be reset for any of {len(facts)} rollouts of a step; the first raised {errors[0]}"
        )
