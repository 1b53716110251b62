"""Rollouts for the rewards' tests: scripted turns played by the real loop, so statuses and stop reasons are its own."""

from functools import cache
from typing import Any

from envmask_trl import ScriptedSampler, Trajectory, pack_rollouts, run_rollouts

from .tiny import add, tiny_tokenizer, user

QUESTION = "What is 20 + 22?"


@cache
def tokenizer():
    return tiny_tokenizer()


def weather(city: str) -> str:
    """The weather now.

    Args:
        city: Name of a city.
    """
    if city == "Atlantis":
        raise LookupError("no such city")
    return '{"temperature": 7, "sky": "cloudy"}'


def read_file(path: str) -> str:
    """A file of the machine that the rollout runs on.

    Args:
        path: Where it is.
    """
    return "gold: 42"


def play(*scripts: list[str], question: str = QUESTION, tools=(add, weather, read_file), **options) -> list[Trajectory]:
    """One rollout per script, in order."""
    turns = [[tokenizer()(turn, add_special_tokens=False)["input_ids"] for turn in script] for script in scripts]
    return run_rollouts(
        [user(question)] * len(scripts), tokenizer=tokenizer(), sampler=ScriptedSampler(turns), tools=tools, **options
    )


def as_trainer(trajectories: list[Trajectory], **columns: Any) -> dict[str, Any]:
    """The keywords that EnvMaskGRPOTrainer passes to a reward function."""
    names = ("prompt_ids", "completion_ids", "env_mask", "unfinished")
    rows = {name: [getattr(trajectory, name) for trajectory in trajectories] for name in names}
    packed = pack_rollouts(rows, max_total_length=10_000, tokenizer=tokenizer())
    return {
        "prompts": [trajectory.prompt for trajectory in trajectories],
        "completions": [list(trajectory.messages) for trajectory in trajectories],
        "completion_ids": packed["completion_ids"],
        "trajectories": trajectories,
        "completion_texts": packed["completion_text"],
        "model_texts": packed["model_text"],
        "stop_reasons": [trajectory.stop_reason for trajectory in trajectories],
        "unfinished": packed["unfinished"],
        **columns,
    }


def as_plain_trl(trajectories: list[Trajectory], **columns: Any) -> dict[str, Any]:
    """The keywords that a plain trl.GRPOTrainer passes: no trajectories, nothing about how a rollout ended."""
    keywords = as_trainer(trajectories, **columns)
    return {k: keywords[k] for k in ("prompts", "completions", "completion_ids", *columns)}
