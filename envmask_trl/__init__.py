"""GRPO for tool-calling language models in which the sampled, the trained and the rewarded tokens are one trajectory.

Importing the package imports neither torch nor trl: each public name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Source": "trajectory",
    "Segment": "trajectory",
    "StopReason": "trajectory",
    "CallStatus": "trajectory",
    "ToolCall": "trajectory",
    "ToolResult": "trajectory",
    "Trajectory": "trajectory",
    "completion_mask_from_env_mask": "masks",
    "pack_rollouts": "packing",
    "mask_observations": "sft",
    "run_rollouts": "rollout.loop",
    "RolloutLimits": "rollout.limits",
    "Context": "rollout.samplers",
    "Sample": "rollout.samplers",
    "Sampler": "rollout.samplers",
    "ScriptedSampler": "rollout.samplers",
    "TransformersSampler": "rollout.transformers_sampler",
    "KeptCacheSampler": "rollout.kept_cache",
    "ObservationEncoder": "rollout.observations",
    "ParsedTurn": "rollout.tool_calls",
    "TemplateParser": "rollout.tool_calls",
    "ToolRunner": "rollout.tools",
    "RolloutAborted": "rollout.tools",
    "EnvMaskGRPOConfig": "training.config",
    "EnvMaskGRPOTrainer": "training.trainer",
    "save_rollouts": "inspect.records",
    "load_rollouts": "inspect.records",
    "view": "inspect.view",
    "lint": "inspect.lint.linter",
    "LintReport": "inspect.lint.report",
    "audit": "inspect.audit",
    "check_template": "inspect.template_check",
    "TemplateVerdict": "inspect.template_verdict",
    "AuditReport": "inspect.audit_report",
    "AuditFailed": "inspect.audit_report",
    "Objective": "inspect.independent_loss",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from .inspect.audit import audit
    from .inspect.audit_report import AuditFailed, AuditReport
    from .inspect.independent_loss import Objective
    from .inspect.lint.linter import lint
    from .inspect.lint.report import LintReport
    from .inspect.records import load_rollouts, save_rollouts
    from .inspect.template_check import check_template
    from .inspect.template_verdict import TemplateVerdict
    from .inspect.view import view
    from .masks import completion_mask_from_env_mask
    from .packing import pack_rollouts
    from .rollout.kept_cache import KeptCacheSampler
    from .rollout.limits import RolloutLimits
    from .rollout.loop import run_rollouts
    from .rollout.observations import ObservationEncoder
    from .rollout.samplers import Context, Sample, Sampler, ScriptedSampler
    from .rollout.tool_calls import ParsedTurn, TemplateParser
    from .rollout.tools import RolloutAborted, ToolRunner
    from .rollout.transformers_sampler import TransformersSampler
    from .sft import mask_observations
    from .training.config import EnvMaskGRPOConfig
    from .training.trainer import EnvMaskGRPOTrainer
    from .trajectory import CallStatus, Segment, Source, StopReason, ToolCall, ToolResult, Trajectory


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"envmask_trl has no {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
