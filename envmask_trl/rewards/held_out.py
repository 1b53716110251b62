"""Reward up while held-out correctness stays flat: a sign that no single rollout shows. Knows numbers and logs."""

import logging
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from transformers import TrainerCallback

logger = logging.getLogger(__name__)


class RewardWithoutProgress:
    """Compares the gain of the trained reward with the gain of correctness on questions that are not trained.

    Example:
        watch = RewardWithoutProgress()
        for step in range(6):
            watch.update(reward=0.2 + 0.1 * step, held_out=0.3)      # the last ones: True

    Args:
        window: evaluations compared: the mean of the older half with the mean of the newer half.
        min_rise: reward gain below which nothing is said.
        max_gain: gain of held-out correctness that counts as flat.
    """

    def __init__(self, *, window: int = 6, min_rise: float = 0.1, max_gain: float = 0.01):
        if window < 2:
            raise ValueError(f"RewardWithoutProgress got window={window}, expected at least 2 evaluations")
        self.min_rise, self.max_gain = min_rise, max_gain
        self.rewards: deque[float] = deque(maxlen=window)
        self.held_out: deque[float] = deque(maxlen=window)

    def update(self, *, reward: float, held_out: float) -> bool:
        """Whether the reward went up and held-out correctness did not; False until the window is full."""
        self.rewards.append(reward)
        self.held_out.append(held_out)
        if len(self.rewards) < (self.rewards.maxlen or 0):
            return False
        return gain(self.rewards) >= self.min_rise and gain(self.held_out) <= self.max_gain


class HeldOutWatch(TrainerCallback):
    """Does that from a trainer's logs, warns once per finding and logs `hacking/reward_without_progress` (0 or 1).

    Needs `eval_dataset` and `eval_strategy="steps"`. The reward is the mean of what was logged since the last
    evaluation; correctness is what the evaluation logged for a reward that is about nothing else.

    Example:
        EnvMaskGRPOTrainer(
            model, reward_funcs=[composed, rules.exact_answer()], args=EnvMaskGRPOConfig(reward_weights=[1, 0], ...),
            eval_dataset=held_out, callbacks=[HeldOutWatch("eval_rewards/exact_answer/mean")], ...,
        )

    Args:
        held_out_key: of the evaluation's log.
        reward_key: of the training logs.
        watch: by default `RewardWithoutProgress()`.
    """

    def __init__(self, held_out_key: str, *, reward_key: str = "reward", watch: RewardWithoutProgress | None = None):
        self.held_out_key, self.reward_key = held_out_key, reward_key
        self.watch = watch or RewardWithoutProgress()
        self.rewards: list[float] = []
        self.findings: list[int] = []  # steps

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = logs if logs is not None else {}
        if self.reward_key in logs:
            self.rewards.append(float(logs[self.reward_key]))
        if self.held_out_key not in logs or not self.rewards:
            return
        found = self.watch.update(reward=fmean(self.rewards), held_out=float(logs[self.held_out_key]))
        self.rewards = []
        logs["hacking/reward_without_progress"] = float(found)
        if found:
            self.findings.append(state.global_step)
            logger.warning(
                f"step {state.global_step}: the reward went up by {gain(self.watch.rewards):.3g} while "
                f"{self.held_out_key} went up by {gain(self.watch.held_out):.3g}; look at rollouts before training on"
            )


def gain(values: Sequence[float] | deque[float]) -> float:
    """Mean of the newer half minus mean of the older half."""
    values, half = list(values), len(values) // 2
    return fmean(values[-half:]) - fmean(values[:half])
