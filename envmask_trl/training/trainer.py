"""GRPO under an environment mask. Knows the order of things in a training step; how each is done stands elsewhere."""

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging
from trl import GRPOConfig

from ..inspect.audit_report import AuditReport
from ..inspect.first_step import FirstStepAudit
from ..inspect.records import rollout_columns, save_rollouts
from ..packing import pack_rollouts
from ..rollout.environment_runs import close_environments
from ..rollout.loop import run_rollouts
from ..rollout.samplers import Sampler
from ..rollout.search.tag_protocol import TagProtocol
from ..rollout.tool_calls import TurnParser
from ..rollout.tool_context import hide_contexts
from ..rollout.tools import ToolRunner
from ..trajectory import Trajectory
from ._trl import any_template_accepted
from ._trl_environments import GuardedEnvironments
from .chat_format import chat_format, environment_guard
from .checkpoints import checkpoint_to_resume
from .config import DEFAULT_ITERATIONS, EnvMaskGRPOConfig
from .left_out import left_out
from .loss_inputs import (
    ROW_MEAN_LOSSES,
    Batch,
    ScoredModel,
    annotate_windows,
    apply_mask,
    trained_positions,
    window_counts,
)
from .micro_batches import arrange, depends_on_split
from .own_head import Heads
from .reward_checks import checked_functions
from .rollout_files import RolloutFiles
from .rollout_function import checked_rollout_func
from .rows import check_finite, to_columns, trl_rows
from .sampling import engine_stops_at, keeps_cache, open_sampler
from .shared_prefix import tree_forward
from .shown_prompts import shown_prompts
from .step_log import StepLog
from .step_times import StepTimes
from .trainer_arguments import check_given, check_output_dir, check_trainer
from .turn_credit import TurnCredit, saved_advantages

logger = logging.get_logger(__name__)


class EnvMaskGRPOTrainer(GuardedEnvironments):
    """`trl.GRPOTrainer` in which only what the model sampled is trained.

    Same arguments: change the import, and a script with `tools=` or `environment_factory=` runs. Generation is the
    tool loop of `run_rollouts`; rewards see exactly the tokens that are trained; `compute_loss` uses the mask that was
    born when the tokens were appended. Advantages, loss types, KL, PEFT, vLLM and checkpoints are TRL's.

    Reward functions get TRL's arguments and, as keywords, `trajectories`, `completion_texts` (observations included),
    `model_texts` (only what the model wrote), `stop_reasons`, `unfinished` and `cut_observations` (how many results
    were shortened to fit), one entry per completion.

    Example:
        trainer = EnvMaskGRPOTrainer(
            model="Qwen/Qwen3-0.6B", reward_funcs=correct, args=EnvMaskGRPOConfig(output_dir="runs/agent"),
            train_dataset=dataset, tools=[weather, calculator],
        )
        trainer.train()

    Args:
        parser: from a turn's decoded text to a `ParsedTurn`, for formats that transformers' response parsing cannot
            read; further arguments as for `trl.GRPOTrainer`.
        protocol: how a model without tools calls its one tool, in place of `tools`; see `TagProtocol`.

    Raises:
        ValueError: a processor instead of a tokenizer, data or arguments that `check_trainer` refuses, or a chat
            template whose calls cannot be read.
    """

    args: EnvMaskGRPOConfig
    processing_class: PreTrainedTokenizerBase

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        *further: Any,
        parser: TurnParser | None = None,
        protocol: TagProtocol | None = None,
        **kwargs: Any,
    ):
        kwargs |= {"tools": hide_contexts(kwargs["tools"])} if "tools" in kwargs else {}
        check_given(model, args, kwargs, rewards=reward_funcs, parser=parser)
        if args is not None:
            if args.max_tool_calling_iterations is None:
                logger.warning(f"max_tool_calling_iterations is not set; {DEFAULT_ITERATIONS} rounds of tools at most")
            args = engine_stops_at(EnvMaskGRPOConfig.from_grpo_config(args), protocol)
            check_output_dir(args)
        with any_template_accepted():
            super().__init__(model, reward_funcs, args, train_dataset, *further, **kwargs)
        self.args = EnvMaskGRPOConfig.from_grpo_config(self.args)
        if self.has_processor:
            raise ValueError("EnvMaskGRPOTrainer got a processor, expected a tokenizer: images are not supported yet")
        self.protocol = protocol
        check_trainer(self, parser=parser)
        self.hide_lifecycle_methods()
        if self.rollout_func is not None:
            self.rollout_func = checked_rollout_func(self.rollout_func)
            self.mask_truncated_completions = self.args.unfinished_policy == "mask_loss"  # by TRL: nobody else can tell
        self.sampler: Sampler | None = None  # one set here plays every batch instead of the configured one
        self.keeps_cache = keeps_cache(self)
        self.heads = Heads(self.temperature)
        self.tree_forward = tree_forward(self.model, wanted=self.args.shared_prefix)
        self.tool_runner = ToolRunner(timeout_s=self.args.tool_timeout_s, retries=self.args.tool_retries)
        self.parser, self.encoder = chat_format(self, parser)
        self.guard = environment_guard(self)
        self.times = StepTimes()
        self.step_log = StepLog(self)
        rollouts = Path(str(self.args.output_dir), "rollouts")
        self.rollout_files = RolloutFiles(rollouts, process=self.accelerator.process_index)
        self.credit = TurnCredit(self)
        functions = self.asked_only_if_it_works(self.reward_funcs)
        self.reward_funcs = checked_functions(functions, self.reward_func_names)
        self.columns: dict[str, list] = {}  # the aligned columns of the latest rollouts
        self.trajectories: list[Trajectory] = []
        self.rewards_per_func: Tensor | None = None
        self.audit_report: AuditReport | None = None  # of the first step, see `audit_first_step`
        self.first_step_audit = FirstStepAudit(self) if self.args.audit_first_step else None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        kwargs = self.args.chat_template_kwargs or {}
        assert isinstance(kwargs, dict)  # a string from the command line is decoded by the config
        return kwargs

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        resume_from_checkpoint = checkpoint_to_resume(
            resume_from_checkpoint, self.args.output_dir, has_adapter=isinstance(self.model, PeftModel)
        )
        if not resume_from_checkpoint and self.args.save_rollouts:
            self.set_earlier_rollouts_aside()
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.close_idle_environments()

    def roll_out(self, prompts: list) -> dict[str, Any]:
        """Play the rollouts of one generation batch and align everything that belongs to a row."""
        max_total_length, prompts = self.max_model_length, shown_prompts(prompts, self.tools)
        with open_sampler(self) as sampler:
            self.trajectories = run_rollouts(
                prompts,
                tokenizer=self.processing_class,
                sampler=sampler,
                tools=self.standalone_tools,
                environments=self.played_environments,
                limits=self.args.limits(max_total_length=max_total_length),
                prompt_ids=self.tokenize_prompts(prompts),
                parser=self.parser,
                encoder=self.encoder,
                protocol=self.protocol,
                tool_runner=self.tool_runner,
                stop_token_ids=self.eos_token_ids,
                any_live=self.any_live,
                phase=self.times.phase,
            )
        with self.times.phase("packing"):
            columns = to_columns(self.trajectories)
            self.columns = columns | pack_rollouts(
                columns, max_total_length=max_total_length or longest(columns), tokenizer=self.processing_class
            )
            policies = self.args.unfinished_policy, self.args.void_policy
            self.columns |= left_out(self.trajectories, self.columns["unfinished"], *policies)
        self.step_log.rollouts(self.trajectories, self.columns)
        return trl_rows(
            self.columns,
            self.trajectories,
            prompts,
            filler_id=self.processing_class.pad_token_id,
            mask_env_tokens=self.args.mask_env_tokens,
        )

    def set_earlier_rollouts_aside(self) -> None:
        if self.accelerator.is_main_process and (kept := self.rollout_files.set_earlier_aside()):
            logger.info(f"the rollouts of an earlier run are in {kept} now")
        self.rollout_files.written.clear()
        self.accelerator.wait_for_everyone()

    def adjust_rewards(self, rewards_per_func: Tensor) -> Tensor:
        """Take rollouts that are to be dropped out of their group's baseline: a NaN is not scored."""
        check_finite(rewards_per_func, self.reward_func_names)
        self.rewards_per_func = rewards_per_func
        self.step_log.rewards(rewards_per_func)
        if "drop" not in (self.args.unfinished_policy, self.args.void_policy) or not self.columns:
            return rewards_per_func
        dropped = gather(torch.tensor(self.columns["dropped"], device=rewards_per_func.device))
        return rewards_per_func.masked_fill(dropped.unsqueeze(1), torch.nan)

    def after_scoring(self, batch: Batch) -> None:
        """Give each turn its credit, and write the scored rollouts down before anything can go wrong with them."""
        self.credit.assign(batch)
        if not (self.args.save_rollouts and self.model.training and self.columns):
            return
        assert self.rewards_per_func is not None
        step, count = self.state.global_step, len(self.trajectories)
        groups = self.rollout_files.groups(
            count, step=step, processes=self.accelerator.num_processes, group_size=int(self.num_generations or 1)
        )
        path = self.rollout_files.next_path(step=step)
        own_rewards = self.own_rows(self.rewards_per_func, count).tolist()
        rewards = [dict(zip(self.reward_func_names, values, strict=True)) for values in own_rewards]
        advantages = saved_advantages(batch, [len(trajectory.completion_ids) for trajectory in self.trajectories])
        columns = rollout_columns(self.trajectories, rewards=rewards, advantages=advantages)
        masks = (batch["completion_mask"] * batch["tool_mask"]).tolist()
        columns["loss_mask"] = [mask[: len(ids)] for mask, ids in zip(masks, columns["completion_ids"], strict=True)]
        save_rollouts(columns | {"step": [step] * count, "group": groups}, path)

    def prepare_windows(self, batches: list[Batch]) -> None:
        """Count, once per generation, what each optimizer step divides by."""
        window = min(self.args.gradient_accumulation_steps, len(batches))
        if self.args.balance_micro_batches and not depends_on_split(self):
            arrange(batches, window, as_trees=self.tree_forward is not None)
        masks = [trained_positions(batch, self.cutting_eos_ids) for batch in batches]
        totals = self.sum_over_processes(window_counts(batches, masks, window))
        annotate_windows(batches, totals, window, self.accelerator.num_processes)
        if self.first_step_audit is not None and self.model.training:
            audit, self.first_step_audit = self.first_step_audit, None
            audit.run(batches, masks)

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """TRL's loss on the positions that the env_mask selects, see `apply_mask`."""
        self.trained = trained_positions(inputs, self.cutting_eos_ids)
        row_scale = inputs.get("row_scale", 1.0) if self.loss_type in ROW_MEAN_LOSSES else 1.0
        masked = apply_mask(inputs, self.trained, row_scale)
        beta, self.beta = self.beta, self.beta * row_scale  # the KL is averaged over the same rows
        try:
            with self.times.phase("loss"):
                loss = super().compute_loss(model, masked, return_outputs, num_items_in_batch)
        finally:
            self.beta, self.trained = beta, None
        self.replace_nan_metrics("clip_ratio/low_min", "clip_ratio/high_max")
        return loss

    def scored_model(self, model: Any) -> Any:
        """The model as TRL's log-prob hook calls it: trained positions are scored, by a head that does it right."""
        if self.trained is None:
            return model
        with self.accelerator.autocast():
            model = model if self.args.cast_lm_head_to_fp32 else self.heads.checked(model)
        return ScoredModel(model, self.trained, self.tree_forward, self.log_value)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.step_log.times()
        super().log(logs, start_time)

    @property
    def cutting_eos_ids(self) -> list[int] | None:
        """Ids that end a completion; one inside an observation that is trained must not, nor one under a given mask."""
        return self.eos_token_ids if self.args.mask_env_tokens and self.rollout_func is None else None

    def end_environments(self, environments: list[object]) -> None:
        close_environments(environments, runner=self.tool_runner)


def longest(columns: dict[str, list]) -> int:
    """Tokens of the longest row: the limit that cuts nothing."""
    return max(len(p) + len(c) for p, c in zip(columns["prompt_ids"], columns["completion_ids"], strict=True))
