"""A tokenizer trained on the spot, for plain text with tags. A name is cut at the same place wherever it stands.

"<search> Anna Korvin</search>"  ->  <search>| Anna| Kor|vin|</search>
"""

from collections.abc import Iterable

from tokenizers import Regex
from transformers import PreTrainedTokenizerFast

from ..weather_calculator.tokenizer import train_bpe

VOCABULARY_SIZE = 1_400  # bytes, about 350 words and syllables, and the merges on the way to them

# What the environment writes around a document; a tag; the halves of a name of three and three letters; a word.
_PIECES = Regex(
    r"\n*Doc \d\(Title:|\n*</?[a-z]+>\n*| ?[A-Z][a-z]{2}(?=[a-z]{3}(?![a-z]))|(?<=[A-Z][a-z]{2})[a-z]{3}(?![a-z])"
    r"| ?[A-Z]?[a-z]+| ?\d|[^\sA-Za-z\d<]+|\s+|<"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE without a chat template, as a base model has it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(texts, pieces=_PIECES, vocabulary_size=VOCABULARY_SIZE),
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        clean_up_tokenization_spaces=False,
    )


def tokenizer_texts(articles: list[dict], questions: Iterable[str]) -> list[str]:
    """What the tokenizer has to know: articles as they are shown, questions, and the tags."""
    texts = [f"\nDoc {1 + i % 3}(Title: {row['title']}) {row['text']}" for i, row in enumerate(articles)]
    tags = ["<search>", "</search>", "<answer>", "</answer>", "\n\n<information>", "</information>\n\n"]
    return [*texts, *questions, *[f"{tag} " for tag in tags] * 100]
