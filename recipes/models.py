"""Models made from a config, with nothing to download. Knows sizes only: no data, no training.

quickstart_model(tokenizer)   about 0.2 M parameters: learns two tools on two cores in two minutes
tiny()                        532,832 parameters: for tests
lite()                        63,912,192 parameters: for benchmarks
"""

from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM


def quickstart_model(tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """A Qwen3 model as small as the quickstart's task allows, with the tokenizer's vocabulary and special tokens."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,  # vLLM runs no head smaller than 32
            intermediate_size=192,
            max_position_embeddings=1024,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def tiny() -> Qwen3ForCausalLM:
    """Qwen3 with 532,832 parameters."""
    return _checked(Qwen3ForCausalLM(_config(64, layers=2, head_dim=8, intermediate_size=256)), parameters=532_832)


def lite() -> Qwen3ForCausalLM:
    """Qwen3 with 63,912,192 parameters."""
    return _checked(
        Qwen3ForCausalLM(_config(768, layers=8, head_dim=96, intermediate_size=2432)), parameters=63_912_192
    )


def _config(hidden_size: int, *, layers: int, head_dim: int, intermediate_size: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=6_400,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        max_position_embeddings=8_192,
        tie_word_embeddings=True,
    )


def _checked(model: Qwen3ForCausalLM, *, parameters: int) -> Qwen3ForCausalLM:
    if model.num_parameters() != parameters:
        raise ValueError(
            f"the model has {model.num_parameters():,} parameters, expected {parameters:,}; check its config"
        )
    return model
