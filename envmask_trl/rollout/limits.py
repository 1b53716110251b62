"""The budgets of a rollout, all in tokens except where the name says otherwise."""

from dataclasses import dataclass, fields
from typing import Literal

Cut = Literal["head", "tail", "middle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """What a rollout may use. A limit that is None does not apply.

    Example:
        RolloutLimits(max_completion_length=512, max_observation_tokens=128, max_tool_calling_iterations=4)
    """

    max_completion_length: int = 1024  # sampled and observed tokens together
    max_turn_tokens: int | None = None  # sampled tokens of one turn
    max_total_length: int | None = None  # prompt + completion, usually the model's context
    max_tool_calling_iterations: int = 16  # rounds of tools
    max_observation_tokens: int | None = None  # content of one tool's result
    observation_cut: Cut = "tail"  # the part of a too long result that is left out
    max_malformed_calls: int = 3  # calls that were never run (unreadable, unknown tool, bad arguments) before giving up
    min_answer_tokens: int = 8  # room that an observation must leave for the model's next turn

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name in ("max_tool_calling_iterations", "max_malformed_calls") else 1
            if item.name == "observation_cut" or (value is None and item.default is None):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"RolloutLimits.{item.name} is {value!r}, expected a whole number")
            if value < least:
                raise ValueError(f"RolloutLimits.{item.name} is {value}, expected at least {least}")
        if self.observation_cut not in ("head", "tail", "middle"):
            raise ValueError(
                f"RolloutLimits.observation_cut is {self.observation_cut!r}, expected 'head', 'tail' or 'middle'"
            )

    def room(self, prompt_length: int, completion_length: int) -> int:
        """Tokens that may still be added, never negative."""
        room = self.max_completion_length - completion_length
        if self.max_total_length is not None:
            room = min(room, self.max_total_length - prompt_length - completion_length)
        return max(room, 0)
