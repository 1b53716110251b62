"""A tokenizer and a model made on the spot, small enough to train in a test. Knows no trainer and nothing to download.

<|im_start|>user
row 3<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "add", "arguments": {"a": 1, "b": 2}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
3
</tool_response><|im_end|>
<|im_start|>assistant
3<|im_end|>
"""

import json
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CHAT_TEMPLATE = """\
{%- if tools -%}
{{ '<|im_start|>system\n' }}
{%- for tool in tools %}{{ tool.function.name + '\n' }}{% endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\n' }}{%- endif -%}
{%- else -%}
{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
TEXTS = ['{"name": "add", "arguments": {"a": 1, "b": 2}}', "system\nuser\nassistant\n", "row of the batch: "] * 20


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of about 300 tokens with a ChatML template that knows tools; eos is <|im_end|>, pad is another."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    markers = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in markers])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0) -> Qwen3ForCausalLM:
    """Qwen3 with 2 layers of width 32; the same weights for the same seed."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def impatient_model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0) -> Qwen3ForCausalLM:
    """`tiny_model` whose noise depends on the context, and soon ends a turn: any byte beyond ASCII does.

    Without the first, greedy decoding would repeat the prompt's last token, whatever the prompt is.
    """
    model = tiny_model(tokenizer, seed=seed)
    beyond = [token_id for token_id in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([token_id])]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *beyond]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.mul_(30)
    return model


def call(name: str, **arguments: Any) -> str:
    """A turn with one tool call, as the chat template writes it, its end included."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call><|im_end|>'


def answer(text: str) -> str:
    """A turn that is an answer, its end included."""
    return f"{text}<|im_end|>"


def user(text: str) -> list[dict[str, str]]:
    """A prompt of one message."""
    return [{"role": "user", "content": text}]


def add(a: int, b: int) -> str:
    """The sum of two numbers.

    Args:
        a: A number.
        b: Another number.
    """
    return str(a + b)
