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
    "mask_observations": "sft.map",
    "mask_dataset": "sft.map",
    "MaskReport": "sft.report",
    "TooManyDropped": "sft.report",
    "PartWeights": "sft.parts",
    "TagFormat": "sft.tag_format",
    "register_special_tokens": "sft.special_tokens",
    "check_packing": "sft.packing_check",
    "WeightedSFTTrainer": "training.weighted_sft",
    "run_rollouts": "rollout.loop",
    "RolloutLimits": "rollout.limits",
    "Context": "rollout.samplers",
    "Sample": "rollout.samplers",
    "Sampler": "rollout.samplers",
    "OverlappingSampler": "rollout.samplers",
    "ScriptedSampler": "rollout.samplers",
    "TransformersSampler": "rollout.transformers_sampler",
    "KeptCacheSampler": "rollout.kept_cache",
    "ObservationEncoder": "rollout.observations",
    "ParsedTurn": "rollout.tool_calls",
    "TemplateParser": "rollout.tool_calls",
    "ToolRunner": "rollout.tools",
    "RolloutAborted": "rollout.tools",
    "RolloutContext": "rollout.tool_context",
    "BatchedTool": "rollout.batched_tools",
    "Document": "rollout.search.retriever",
    "Retriever": "rollout.search.retriever",
    "BM25Retriever": "rollout.search.bm25",
    "DenseRetriever": "rollout.search.dense",
    "HTTPRetriever": "rollout.search.http",
    "SearchTool": "rollout.search.tool",
    "TagProtocol": "rollout.search.tag_protocol",
    "compose": "rewards.compose",
    "bounded": "rewards.compose",
    "Reward": "rewards.reward",
    "TurnReward": "rewards.reward",
    "Rollout": "rewards.reading",
    "Judge": "rewards.judge",
    "HeldOutWatch": "rewards.held_out",
    "rules": "rewards",
    "hacking": "rewards",
    "EnvMaskGRPOConfig": "training.config",
    "EnvMaskGRPOTrainer": "training.trainer",
    "ProgressLine": "training.progress",
    "checkpoint_to_resume": "training.checkpoints",
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
    from .rewards import hacking, rules
    from .rewards.compose import bounded, compose
    from .rewards.held_out import HeldOutWatch
    from .rewards.judge import Judge
    from .rewards.reading import Rollout
    from .rewards.reward import Reward, TurnReward
    from .rollout.batched_tools import BatchedTool
    from .rollout.kept_cache import KeptCacheSampler
    from .rollout.limits import RolloutLimits
    from .rollout.loop import run_rollouts
    from .rollout.observations import ObservationEncoder
    from .rollout.samplers import Context, OverlappingSampler, Sample, Sampler, ScriptedSampler
    from .rollout.search.bm25 import BM25Retriever
    from .rollout.search.dense import DenseRetriever
    from .rollout.search.http import HTTPRetriever
    from .rollout.search.retriever import Document, Retriever
    from .rollout.search.tag_protocol import TagProtocol
    from .rollout.search.tool import SearchTool
    from .rollout.tool_calls import ParsedTurn, TemplateParser
    from .rollout.tool_context import RolloutContext
    from .rollout.tools import RolloutAborted, ToolRunner
    from .rollout.transformers_sampler import TransformersSampler
    from .sft.map import mask_dataset, mask_observations
    from .sft.packing_check import check_packing
    from .sft.parts import PartWeights
    from .sft.report import MaskReport, TooManyDropped
    from .sft.special_tokens import register_special_tokens
    from .sft.tag_format import TagFormat
    from .training.checkpoints import checkpoint_to_resume
    from .training.config import EnvMaskGRPOConfig
    from .training.progress import ProgressLine
    from .training.trainer import EnvMaskGRPOTrainer
    from .training.weighted_sft import WeightedSFTTrainer
    from .trajectory import CallStatus, Segment, Source, StopReason, ToolCall, ToolResult, Trajectory


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"envmask_trl has no {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
