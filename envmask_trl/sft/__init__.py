"""Supervised fine-tuning rows under the mask of rollouts: what the model wrote has labels, observations have none."""

from .map import mask_dataset, mask_observations
from .parts import IGNORED

__all__ = ["IGNORED", "mask_dataset", "mask_observations"]
