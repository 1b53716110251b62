"""A tokenizer trained on the spot: byte-level BPE of about 600 tokens, and a chat template of as few tokens as will do.

<|im_start|>system
weather(city), calculator(expression)<|im_end|>
<|im_start|>user
How warm is Oslo?<|im_end|>
<|im_start|>assistant
<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call><|im_end|>
<|im_start|>user
<tool_response>{"city":"Oslo","wind":41,"temperature":27,"rain":73}</tool_response><|im_end|>
<|im_start|>assistant
27<|im_end|>
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 640  # 256 bytes, the city names, the keys of the weather report, the words of the questions

# A digit alone; a name alone, so that it is one token in the question and the same one inside JSON; a word with the
# punctuation around it, so that `,"humidity":` is one token; whatever is left.
_PIECES = Regex(r"""\d|[A-Z][a-z]+|[",{ .]*[a-z]+[": {\n]*|[^\dA-Za-z]+|[A-Z]""")

CHAT_TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
{% for tool in tools -%}
{{ tool.function.name }}({{ tool.function.parameters.properties.keys() | join(', ') }}){{ '' if loop.last else ', ' }}
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{ '<|im_start|>user\n' }}{%- endif -%}
{{ '<tool_response>' + message.content + '</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\n' }}{%- endif -%}
{%- else -%}
{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{%- set arguments = call.function.arguments -%}
{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- (arguments if arguments is string else arguments | tojson) + '}</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""

# How transformers reads a turn back into a message; the same form as TRL's own for Qwen3.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`; under a second for a few thousand short ones."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(texts, pieces=_PIECES, vocabulary_size=VOCABULARY_SIZE),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    markers = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in markers])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def train_bpe(texts: Iterable[str], *, pieces: Regex, vocabulary_size: int) -> Tokenizer:
    """Byte-level BPE whose merges stay within the pieces that a text is first cut into."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary_size, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    return bpe
