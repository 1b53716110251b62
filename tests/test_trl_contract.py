"""What we lean on in TRL is still there. When TRL moves, the failing name says which hook moved."""

import inspect
import re

import pytest
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer, utils

from envmask_trl.training._trl import HOOKS, TEMPLATE_CHECKS, HookedGRPOTrainer
from envmask_trl.training.config import OF_TRL

PARAMETERS = {
    "_generate": ["self", "prompts"],
    "_generate_single_turn": [
        "self",
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ],
    "_tokenize_prompts": ["self", "prompts"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_prepare_inputs": ["self", "generation_batch"],
}
SOURCE = inspect.getsource(GRPOTrainer)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_the_parameters_that_we_call_it_with(name):
    parameters = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    if name == "_get_per_token_logps_and_entropies":
        assert parameters[:5] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]
    else:
        assert parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", TEMPLATE_CHECKS)
def test_the_constructor_calls_the_template_checks_by_these_names(name):
    assert callable(getattr(grpo_trainer, name)) and f"{name}(processing_class" in SOURCE


@pytest.mark.parametrize(
    "fragment",
    [
        "self._buffered_inputs = [",  # one list per generation, which we annotate
        "self._step % generate_every == 0 or self._buffered_inputs is None",
        "self._env_tools[name] = tools + methods",
        "self._environment_pool = {}",
        "self.environments.append(pool[index])",  # the instances that `drawn_environments` foretells
        "observation = environment.reset(**reset_kwargs)",
        "[e.get_reward() if type(e) is _env_type else None for e in environments]",
        "self._standalone_tools = tools",
        'output["tool_mask"] = tool_mask',
        'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]',
        "outputs = model(**model_inputs, labels=labels, fused_lm_head=True)",  # the one call that ScoredModel stands in
        "inp[key] = values[i]",  # extra fields become reward keywords
        "self.max_completion_length = args.max_completion_length",
        "self.generation_kwargs = generation_kwargs",
    ],
)
def test_trl_still_does_what_the_hooks_rely_on(fragment):
    assert fragment in SOURCE


def test_the_generation_hook_returns_the_eight_values_that_we_return():
    assert (
        "return prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images"
        in SOURCE
    )


def test_the_fused_head_asks_by_this_name_whether_to_gather_positions():
    assert "compact = _use_triton(hidden_states.device)" in inspect.getsource(utils)


def test_row_mean_losses_are_those_that_trl_averages_over_rows():
    from envmask_trl.training.loss_inputs import ROW_MEAN_LOSSES

    assert (
        'if self.loss_type in ["grpo", "sapo"]:' in SOURCE and "loss = (per_token_loss * mask).sum(-1).mean()" in SOURCE
    )
    assert ROW_MEAN_LOSSES == ("grpo", "sapo", "luspo")


def test_the_values_of_options_are_those_that_trl_knows():
    for name, values in OF_TRL.items():
        compared = re.findall(rf"self\.{name} (?:==|in) (\[[^\]]*\]|\"\w+\")", SOURCE)
        assert {value for found in compared for value in re.findall(r"\w+", found)} == set(values), name


def test_a_processor_and_the_tags_of_a_model_card_are_known_by_these_names():
    assert "self._is_vlm = " in SOURCE and GRPOTrainer._tag_names == ["trl", "grpo"]


def test_the_hooked_trainer_leaves_the_constructor_to_trl():
    assert HookedGRPOTrainer.__init__ is GRPOTrainer.__init__
    assert "max_tool_calling_iterations" in GRPOConfig.__dataclass_fields__
