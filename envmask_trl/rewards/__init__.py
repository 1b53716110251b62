"""What a rollout is worth. Rewards read what the model wrote; they import no trainer."""

from . import hacking, rules

__all__ = ["hacking", "rules"]
