"""Leaves a model as it was found: its layers' modes and the state of the random numbers. Knows no rollouts."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Inside, no layer drops anything out, so that two forwards of the same tokens agree; afterwards all is as before.

    The model itself keeps its flag, which the trainer reads as "training or evaluation?", and so do layers that
    recompute their activations, or a model that fits only with checkpointing would not fit into an audit.
    """
    modes = {module: module.training for module in model.modules()}
    for module, training in modes.items():
        module.training = training and (module is model or isinstance(module, GradientCheckpointingLayer))
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes.items():
            module.training = training
