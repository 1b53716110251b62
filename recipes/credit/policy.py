"""A model that knows how a pick is written and picks at random. Knows tokens: no environment, no reward."""

import random

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from envmask_trl import ParsedTurn, ToolCall

from .tasks import COLOURS, NAMED, STEPS, TASKS

MARKS = ("<user>", "</user>", "<tool>", "</tool>", "<assistant>", "<call>", "</call>")
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{ '<user>' + message.content + '</user>' }}
{%- elif message.role == 'tool' -%}{{ '<tool>' + message.content + '</tool>' }}
{%- else -%}{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{{ '<call>' + call.function.name + (call.function.arguments | tojson) + '</call>' }}
{%- endfor -%}{{ '<end>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<assistant>' }}{%- endif -%}
"""
WARM_STEPS = 60
WARM_ROWS = 32
WARM_LEARNING_RATE = 1e-2


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word of the two tasks, and one per byte of anything else."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", pad_token="<pad>", clean_up_tokenization_spaces=False
    )
    words = (*MARKS, *TASKS, *COLOURS)
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def read_pick(text: str) -> ParsedTurn:
    """`red<end>` is a call of `pick`; anything but one colour ends the rollout as an answer."""
    word = text.removesuffix("<end>")
    if word not in COLOURS:
        return ParsedTurn("answer", {"role": "assistant", "content": word})
    arguments = {"colour": word}
    entry = {"type": "function", "function": {"name": "pick", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [entry]}
    return ParsedTurn("calls", message, (ToolCall("", "pick", arguments),))


def random_picker(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen3ForCausalLM:
    """A small Qwen3 that has seen rollouts of random picks, so that it knows the form and prefers no colour."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=64,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    chooser, optimizer = random.Random(seed), torch.optim.AdamW(model.parameters(), lr=WARM_LEARNING_RATE)
    for _ in range(WARM_STEPS):
        ids = torch.tensor([tokenizer(random_rollout(chooser))["input_ids"] for _ in range(WARM_ROWS)])  # [B, T]
        written = torch.isin(ids[:, 1:], tokenizer("".join((*COLOURS, "<end>")), return_tensors="pt")["input_ids"])
        written[:, :3] = False  # the prompt names a colour, too
        loss = cross_entropy(model(input_ids=ids).logits[:, :-1][written], ids[:, 1:][written])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def random_rollout(chooser: random.Random) -> str:
    """`<user>waste red</user><assistant>blue<end><tool>2</tool><assistant>red<end>...`"""
    text = f"<user>{chooser.choice(TASKS)} {chooser.choice(NAMED)}</user><assistant>"
    for step in range(1, STEPS + 1):
        text += f"{chooser.choice(COLOURS)}<end>" + f"<tool>{step + 1}</tool><assistant>" * (step < STEPS)
    return text
