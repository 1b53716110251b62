"""With which models and options of `generate` keys and values can be kept over turns. Knows configs: no tensors."""

import copy
import inspect
from typing import Any

from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.generation import GenerationMode

ROPES_THAT_GROW = ("dynamic", "longrope")
OF_THE_WHOLE_BATCH = (  # options of `generate` whose processors know which row stands where
    *("encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "guidance_scale", "watermarking_config"),
)


def why_not_kept(model: PreTrainedModel) -> str | None:
    """Why this model's cache cannot be kept over turns; None if it can."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        return f"{name} is an encoder-decoder model"
    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers} - {DynamicLayer}
    if kinds:
        return f"{name} has layers whose cache is a {min(kind.__name__ for kind in kinds)}, which keeps not every key"
    text_config = model.config.get_text_config()
    if "local" in getattr(text_config, "attention_layers", ()):
        return f"{name} has layers with a window over columns, and a row whose turn ended early has holes in it"
    if rope := rope_that_grows(text_config):
        return f"{name} turns its keys by an angle that depends on the length of the row (rope_type {rope!r})"
    lacking = {"position_ids", "attention_mask", "logits_to_keep"} - forward_arguments(model)
    if lacking:
        return f"{name}.forward does not take {', '.join(sorted(lacking))}"
    return None


def rope_that_grows(config: Any) -> str | None:
    """The kind of rotary embedding whose frequencies change with the number of tokens, if the model has one."""
    parameters = getattr(config, "rope_parameters", None) or {}
    parts = [parameters, *(part for part in parameters.values() if isinstance(part, dict))]  # one for all, or by layer
    kinds = [part.get("rope_type") for part in parts]
    return next((kind for kind in kinds if kind in ROPES_THAT_GROW), None)


def why_not_row_by_row(config: GenerationConfig, model: PreTrainedModel) -> str | None:
    """Why these options cannot be applied to rows that come and go, one token at a time; None if they can.

    What `config` leaves open `generate` takes from the model's own generation config, and so does this.
    """
    config = filled_up(config, model.generation_config)
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        return f"the options of generate ask for {mode.value.replace('_', ' ')}, which does not decode token by token"
    if config.num_return_sequences not in (None, 1):
        return f"num_return_sequences is {config.num_return_sequences}, and a rollout goes on in one way"
    for name in OF_THE_WHOLE_BATCH:
        value = getattr(config, name)
        if value not in (None, 0, 1.0):
            return f"{name} is {value}, whose processor keeps a state of the whole batch, and rows leave it one by one"
    return None


def forward_arguments(model: PreTrainedModel) -> set[str]:
    unwrap: Any = getattr(model, "get_base_model", lambda: model)  # PEFT's own forward takes anything
    base = unwrap()
    return set(inspect.signature(type(base).forward).parameters)  # an instance's may be wrapped


def filled_up(config: GenerationConfig, default: GenerationConfig | None) -> GenerationConfig:
    """`config` with the values of `default` where it has none."""
    filled = copy.deepcopy(config)
    for name, value in (default.to_dict() if default is not None else {}).items():
        if getattr(filled, name, None) is None:
            setattr(filled, name, value)
    return filled
