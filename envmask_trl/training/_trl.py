"""Every private part of TRL that this library leans on, under names of its own.

`HookedGRPOTrainer` is TRL's trainer with its private hooks turned into methods that the trainer next door implements.
When TRL moves, `tests/test_trl_contract.py` says which of these names moved.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer import grpo_trainer, utils

from ..rollout.environments import NOT_TOOLS
from .loss_inputs import Batch
from .processes import AcrossProcesses
from .reward_checks import check_groups
from .rows import once_per_run
from .step_times import StepTimes
from .swapped import swapped

HOOKS = (  # private methods of GRPOTrainer that are overridden or called here
    *("_generate", "_generate_single_turn", "_tokenize_prompts", "_generate_and_score_completions"),
    *("_calculate_rewards", "_prepare_inputs", "_get_per_token_logps_and_entropies"),
)
CHANGED_BY_A_LOSS = (
    *("_metrics", "entropy_coef", "_last_world_entropy", "_entropy_window_stats", "tree_forward", "times"),
)
SHARDING = (DistributedType.FSDP, DistributedType.DEEPSPEED)
TEMPLATE_CHECKS = ("supports_tool_calling", "is_chat_template_prefix_preserving", "add_response_schema")


def attention_of(model: Any) -> str:
    """The name of a model's attention implementation, which transformers keeps in a private field."""
    return str(model.config.get_text_config()._attn_implementation or "eager")


@contextmanager
def any_template_accepted() -> Iterator[None]:
    """Inside, TRL's constructor takes any chat template with tools, known byte by byte or not.

    Our loop renders no history and finds the response format itself, so TRL's list of known templates does not apply.
    """
    with (
        swapped(grpo_trainer, "supports_tool_calling", lambda processing_class: True),
        swapped(grpo_trainer, "is_chat_template_prefix_preserving", lambda processing_class: True),
        swapped(grpo_trainer, "add_response_schema", lambda processing_class: processing_class),
    ):
        yield


@contextmanager
def only_labelled_positions_scored() -> Iterator[None]:
    """Inside, TRL's fused LM head gathers the positions that have a label on every device, as it does with Triton.

    Elsewhere it projects all positions and multiplies the others' gradients by 0, which keeps a NaN and costs a
    vocabulary-sized product for each of them.
    """
    with swapped(utils, "_use_triton", lambda device: device.type != "neuron"):
        yield


class HookedGRPOTrainer(AcrossProcesses, GRPOTrainer):
    """TRL's trainer with named hooks: roll_out, after_scoring, adjust_rewards, prepare_windows, scored_model."""

    _tag_names = ["trl", "grpo", "envmask"]  # noqa: RUF012
    args: Any
    model: Any
    times: StepTimes
    credit: Any  # a `TurnCredit`
    trained: Tensor | None = None  # [B, C] while log-probs are computed: the positions that are scored

    def roll_out(self, prompts: list) -> dict[str, Any]:
        """Keys prompt_ids, completion_ids, env_mask, completions, logprobs (or None), reward_columns."""
        raise NotImplementedError(f"{type(self).__name__} must define roll_out")

    def after_scoring(self, batch: Batch) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define after_scoring")

    def adjust_rewards(self, rewards_per_func: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define adjust_rewards")

    def prepare_windows(self, batches: list[Batch]) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define prepare_windows")

    def scored_model(self, model: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define scored_model")

    # TRL calls these

    def _generate(self, prompts: list) -> tuple:
        if self.rollout_func is not None:
            output = super()._generate(prompts)
            _, completion_ids, env_mask = output[:3]
            self.set_scored(completion_ids, env_mask or [[1] * len(ids) for ids in completion_ids])
            return output
        out = self.roll_out(prompts)
        self.set_scored(out["completion_ids"], out["env_mask"])
        return (
            out["prompt_ids"],
            out["completion_ids"],
            out["env_mask"],
            out["completions"],
            out["logprobs"] if self.use_vllm else None,  # TRL corrects only for an engine beside the trained model
            out["reward_columns"],
            None,  # images
            [],  # images of tool results
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        self.trained = None
        if self.model.training:
            first = self.accelerator.process_index * len(inputs)
            check_groups(inputs, group_size=int(self.num_generations or 1), first=first)
        try:
            batch = super()._generate_and_score_completions(inputs)
            self.after_scoring(batch)
            return batch
        finally:
            self.trained = None
            self.close_environments()

    def _calculate_rewards(self, inputs: list, prompts: list, completions: list, completion_ids_list: list) -> Tensor:
        with self.times.phase("rewards"):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids_list}
            logs = {"log_extra": self._log_completion_extra, "log_metric": self._log_metric}
            self.credit.score(inputs, given | logs)
        return self.adjust_rewards(rewards)

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        if not self.model.training:
            inputs = super()._prepare_inputs(generation_batch)
            self.prepare_windows([inputs])
            return inputs
        if self._buffered_inputs is None:  # at the start, and after a resume, perhaps inside a generation window
            self._step = self.state.global_step * self.args.gradient_accumulation_steps
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not before:
            self.prepare_windows(self._buffered_inputs)
        return inputs

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple:
        with only_labelled_positions_scored():
            return super()._get_per_token_logps_and_entropies(self.scored_model(model), *args, **kwargs)

    # We call these

    @contextmanager
    def logprobs_kept(self) -> Iterator[list[Tensor]]:
        """Inside, the policy's log-probs of each loss are kept, [B, C]; what a loss changes here is put back."""
        kept: list[Tensor] = []
        before = {name: copy.deepcopy(vars(self)[name]) for name in CHANGED_BY_A_LOSS}
        hook = self._get_per_token_logps_and_entropies

        def keep(*args: Any, **kwargs: Any) -> tuple:
            output = hook(*args, **kwargs)
            kept.append(output[0])
            return output

        vars(self)["_get_per_token_logps_and_entropies"] = keep
        try:
            yield kept
        finally:
            del vars(self)["_get_per_token_logps_and_entropies"]
            vars(self).update(before)

    def set_scored(self, completion_ids: list, env_mask: list) -> None:
        """From here on only these positions are scored: [B, C], padded as TRL pads the ids."""
        width = max(len(ids) for ids in completion_ids)
        width += -width % int(self.pad_to_multiple_of or 1)
        mask = torch.zeros(len(env_mask), width, dtype=torch.long, device=self.accelerator.device)
        for row, values in enumerate(env_mask):
            mask[row, : len(values)] = torch.tensor(list(values), dtype=torch.long)
        self.trained = mask

    def sample_turn(self, prompt_ids: list[list[int]], *, max_new_tokens: int) -> tuple[list, list]:
        """One turn per prompt from the configured engine, and its log-probs (None per row where it tells none)."""
        with self.turn_budget(max_new_tokens):
            completion_ids, logprobs = self._generate_single_turn(prompt_ids, None, {}, 1)
        return completion_ids, logprobs if logprobs is not None else [None] * len(completion_ids)

    @contextmanager
    def turn_budget(self, max_new_tokens: int) -> Iterator[None]:
        holder, name = (
            (self.vllm_generation, "max_completion_length")
            if self.use_vllm
            else (self.generation_config, "max_new_tokens")
        )
        before = getattr(holder, name)
        setattr(holder, name, max_new_tokens)
        overrides = {} if self.use_vllm else self.generation_kwargs
        kept = dict(overrides)
        if overrides:
            overrides["max_new_tokens"] = max_new_tokens
        try:
            yield
        finally:
            setattr(holder, name, before)
            overrides.update(kept)

    @contextmanager
    def generating_model(self) -> Iterator[Any]:
        """The trained model without its wrappers, as TRL lends it to `generate`."""
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                generation_kwargs=self.generation_kwargs,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as model,
            torch.no_grad(),
        ):
            yield model

    def tokenize_prompts(self, prompts: list) -> list[list[int]]:
        return once_per_run(lambda some: self._tokenize_prompts(some)[0], prompts)

    @property
    def has_processor(self) -> bool:
        """Whether it was given a processor, for images too, in place of a tokenizer."""
        return bool(self._is_vlm)

    @property
    def standalone_tools(self) -> list[Callable[..., Any]]:
        return list(self._standalone_tools)

    @property
    def engine_waits(self) -> bool:
        """Whether the engines of the processes wait for each other, so that all must ask for equally much."""
        if self.accelerator.num_processes == 1:
            return False
        if self.use_vllm and (self.vllm_mode == "server" or self.vllm_tensor_parallel_size > 1):
            return True
        return self.accelerator.distributed_type in SHARDING

    @property
    def max_model_length(self) -> int | None:
        """Tokens of prompt + completion that the model, or the engine in this process, can take."""
        limits = [getattr(self.model.config.get_text_config(), "max_position_embeddings", None)]
        if self.use_vllm:
            limits.append(self.args.vllm_max_model_length)
            if self.vllm_mode == "colocate":
                limits.append(self.vllm_generation.llm.llm_engine.model_config.max_model_len)
        return min((limit for limit in limits if limit is not None), default=None)

    def log_value(self, name: str, value: float) -> None:
        """Add a value to TRL's own metrics, which are averaged over a logging step."""
        self._metrics["train" if self.model.training else "eval"][name].append(value)

    def replace_nan_metrics(self, *names: str) -> None:
        """A batch without a trained token clips nothing: 0, not NaN."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name in names:
            if metrics.get(name) and metrics[name][-1] != metrics[name][-1]:
                metrics[name][-1] = 0.0

    @property
    def probed_environments(self) -> list[Any]:
        """One instance of each environment, which TRL's constructor made to read its methods."""
        return [pool[0] for pool in (self._environment_pool if self.environment_factories is not None else {}).values()]

    def hide_lifecycle_methods(self) -> None:
        """`close` belongs to the environment's life, not to the model's tools."""

        def keep(tools: list) -> list:
            return [tool for tool in tools if tool.__name__ not in NOT_TOOLS or tool in self._standalone_tools]

        if self.environment_factories is not None:
            self._env_tools = {name: keep(tools) for name, tools in self._env_tools.items()}
            self.tools = keep(self.tools)

    def close_environments(self) -> None:
        """End the rollouts' environments that can be closed; TRL makes new ones, and reuses the others."""
        environments: list[object] = self.environments or []
        ended = [env for env in environments if callable(getattr(env, "close", None))]
        self.end_environments(ended)
        for pool in self._environment_pool.values() if ended else ():
            pool[:] = [instance for instance in pool if not any(instance is env for env in ended)]

    def close_idle_environments(self) -> None:
        """Close what TRL still keeps for later batches."""
        pools: dict[Any, list] = self._environment_pool if self.environment_factories is not None else {}
        self.end_environments([environment for pool in pools.values() for environment in pool])

    def end_environments(self, environments: list[object]) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define end_environments")
