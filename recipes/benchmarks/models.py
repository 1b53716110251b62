"""The sizes that are measured, as configs for `ScriptedPolicy`. Knows sizes only.

tiny        0.5 M parameters, as `recipes.models.tiny`
small       4.7 M with the vocabulary of tiny: width 256, 4 layers
vocabulary  small with the vocabulary of Qwen3
lite        64 M, as `recipes.models.lite`
toy         one layer of width 32: for the tests
quickstart  0.2 M, as `recipes.models.quickstart_model`
"""

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, set_seed

from ..models import lite, quickstart_model, tiny
from .policy import Script, ScriptedPolicy

VOCABULARY = 151_936  # of Qwen3
LARGER = 4.0
TOY = {
    "vocab_size": 640,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
}
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "head_dim": 32, "intermediate_size": 1024}


def config_of(size: str, tokenizer: PreTrainedTokenizerBase) -> Qwen3Config:
    """The config of a size, with the tokenizer's special tokens.

    Raises:
        KeyError: there is no such size.
    """
    makers = {
        "toy": lambda: changed(tiny().config, **TOY),
        "tiny": lambda: tiny().config,
        "small": lambda: changed(tiny().config, **SMALL),
        "vocabulary": lambda: changed(tiny().config, **SMALL, vocab_size=VOCABULARY),
        "lite": lambda: lite().config,
        "quickstart": lambda: quickstart_model(tokenizer).config,
    }
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return changed(makers[size](), **special)


def changed(config: Qwen3Config, **changes: object) -> Qwen3Config:
    fields = {name: value for name, value in config.to_dict().items() if name not in ("layer_types", "dtype")}
    return Qwen3Config(**(fields | changes))


def make_policy(size: str, tokenizer: PreTrainedTokenizerBase, script: Script, *, seed: int = 0) -> ScriptedPolicy:
    """The same weights for the same seed; those of the layers are large, so that what is written depends on what was.

    With the usual small ones an untrained model with tied embeddings repeats its last token.
    """
    set_seed(seed)
    policy = ScriptedPolicy(config_of(size, tokenizer)).following(script)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.mul_(LARGER)
    return policy
