"""The trainer's options: TRL's, and those of the loop and the mask. Every field is read."""

import copy
from dataclasses import MISSING, dataclass, field, fields
from math import isfinite
from typing import Any, Literal, get_args

from trl import GRPOConfig

from ..rollout.limits import Cut, RolloutLimits
from ..rollout.observations import ControlTokenPolicy, ObservationMode
from .left_out import RolloutPolicy

SamplerChoice = Literal["auto", "kept_cache", "trl"]
Credit = Literal["outcome", "turn_discounted", "turn", "gigpo"]
DEFAULT_ITERATIONS = 16
OF_TRL = {  # TRL finds these wrong only behind the first rollouts
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}
SWITCHES = (
    *("mask_env_tokens", "strict_observations", "shared_prefix", "balance_micro_batches"),
    *("overlap_tools", "audit_first_step", "save_rollouts"),
)


def option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class EnvMaskGRPOConfig(GRPOConfig):
    """`trl.GRPOConfig` and the options below.

    Example:
        EnvMaskGRPOConfig(output_dir="runs/agent", max_completion_length=512, max_observation_tokens=128)
    """

    max_tool_calling_iterations: int | None = option(DEFAULT_ITERATIONS, "Rounds of tools per rollout; finite.")
    mask_env_tokens: bool = option(
        True, "Leave what the environment wrote out of the loss. False is for ablation: observations are trained."
    )
    unfinished_policy: RolloutPolicy = option(
        "train",
        "What a rollout that was ended from outside is used for: 'train', 'mask_loss' (no loss, but it stays in its "
        "group's baseline) or 'drop' (neither). `mask_truncated_completions=True` means 'mask_loss'.",
    )
    void_policy: RolloutPolicy = option(
        "train",
        "The same for a void rollout: its environment failed, none of its calls came back, or none could be read. A "
        "rollout that is unfinished too is treated as the stricter of both policies says.",
    )
    credit: Credit = option(
        "outcome",
        "What a turn is worth: 'outcome' (GRPO: what its rollout is), 'turn' (its own score), 'turn_discounted' (its "
        "own and the later ones, discounted) or 'gigpo' (the outcome, and what others did in the same state).",
    )
    turn_discount: float = option(0.95, "Of a turn's reward for the turn before, in 'turn_discounted' and 'gigpo'.")
    step_advantage_weight: float = option(1.0, "Of the comparison in the same state beside the outcome, in 'gigpo'.")
    sampler: SamplerChoice = option(
        "auto",
        "What samples the turns: 'kept_cache' keeps keys and values from turn to turn, 'trl' is the engine TRL is "
        "configured for, 'auto' is 'kept_cache' where TRL would call `generate` and the model allows it.",
    )
    shared_prefix: bool = option(
        True, "Compute what rows of a micro-batch begin with in common once, where the model's attention allows it."
    )
    balance_micro_batches: bool = option(
        True,
        "Put rows that begin alike into the same micro-batch of an optimizer step, or rows of like length where they "
        "are forwarded apart. Where that would change the loss (see `depends_on_split`), rows stay where they are.",
    )
    max_turn_tokens: int | None = option(None, "Most sampled tokens of one turn.")
    max_observation_tokens: int | None = option(None, "Most tokens of one tool result's content.")
    observation_cut: Cut = option("tail", "The part of a too long result that is left out: head, tail or middle.")
    control_tokens: ControlTokenPolicy = option(
        "split", "Control tokens inside a tool result: 'split' (ordinary text), 'escape' or 'reject'."
    )
    observation_mode: ObservationMode = option(
        "block",
        "'block' tokenises an observation alone; 'diff' renders the whole conversation, takes what it adds, and counts "
        "as `env_mask/drift` where the template has changed what the rollout holds.",
    )
    strict_observations: bool = option(False, "In the mode 'diff', such a change raises instead of being realigned.")
    max_malformed_calls: int = option(3, "Calls that could not be run before a rollout is given up.")
    min_answer_tokens: int = option(8, "Room that an observation must leave for the model's next turn.")
    tool_timeout_s: float = option(
        30.0, "Deadline in seconds of one tool call, and of an environment's reset and close."
    )
    tool_retries: int = option(0, "Further tries after a tool raised, within the same deadline.")
    overlap_tools: bool = option(
        True,
        "Rollouts go on while tools of others are at work, with the sampler 'kept_cache'. False is for tools that "
        "cannot run beside the model, because they use it or its device.",
    )
    audit_first_step: bool = option(
        False, "Audit the first generation before it is trained: print what is learned and seen, raise on a fault."
    )
    save_rollouts: bool = option(True, "Write each step's rollouts to `output_dir/rollouts` as parquet.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_env_mask_options()

    def check_env_mask_options(self) -> None:
        """Raise on a wrong value, before any work starts."""
        allowed: dict[str, tuple[str, ...]] = {
            "unfinished_policy": get_args(RolloutPolicy),
            "void_policy": get_args(RolloutPolicy),
            "credit": get_args(Credit),
            "control_tokens": get_args(ControlTokenPolicy),
            "observation_mode": get_args(ObservationMode),
            "sampler": get_args(SamplerChoice),
        }
        for name, values in (allowed | OF_TRL).items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(map(repr, values))}")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected True or False")
        for name in ("tool_timeout_s", "tool_retries", "turn_discount", "step_advantage_weight"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not isfinite(value):
                raise ValueError(f"{name} is {value!r}, expected a finite number")
        if self.tool_timeout_s <= 0:
            raise ValueError(f"tool_timeout_s is {self.tool_timeout_s}, expected more than 0 seconds")
        if self.tool_retries < 0 or self.tool_retries != int(self.tool_retries):
            raise ValueError(f"tool_retries is {self.tool_retries}, expected a whole number, 0 or more")
        if not 0 <= self.turn_discount <= 1:
            raise ValueError(f"turn_discount is {self.turn_discount}, expected a number from 0 to 1")
        if self.max_tool_calling_iterations is None:
            self.max_tool_calling_iterations = DEFAULT_ITERATIONS
        if self.mask_truncated_completions:
            self.mask_truncated_completions = False  # TRL would guess from the last token; the loop knows
            if self.unfinished_policy == "train":
                self.unfinished_policy = "mask_loss"
        self.limits(max_total_length=None)

    def limits(self, *, max_total_length: int | None) -> RolloutLimits:
        """The budgets of a rollout; `max_total_length` is the context of the model or its engine, in tokens."""
        if self.max_completion_length is None:
            raise ValueError("max_completion_length is None, expected the most tokens of a rollout's completion")
        return RolloutLimits(
            max_completion_length=self.max_completion_length,
            max_turn_tokens=self.max_turn_tokens,
            max_total_length=max_total_length,
            max_tool_calling_iterations=self.max_tool_calling_iterations or 0,
            max_observation_tokens=self.max_observation_tokens,
            observation_cut=self.observation_cut,
            max_malformed_calls=self.max_malformed_calls,
            min_answer_tokens=min(self.min_answer_tokens, self.max_completion_length),
        )

    @classmethod
    def from_grpo_config(cls, config: GRPOConfig) -> "EnvMaskGRPOConfig":
        """`config` itself, or a copy of a plain `GRPOConfig` with the defaults of the further options."""
        if isinstance(config, cls):
            return config
        upgraded = copy.copy(config)
        own = {item.name for item in fields(cls)} - {item.name for item in fields(config)}
        for item in fields(cls):
            if item.name in own:
                assert item.default is not MISSING, f"{item.name} has no default"
                object.__setattr__(upgraded, item.name, item.default)
        upgraded.__class__ = cls
        upgraded.check_env_mask_options()  # type: ignore[attr-defined]
        return upgraded  # type: ignore[return-value]
