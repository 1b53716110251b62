"""A tokenizer whose ids can be read by eye, and a retriever of two documents, for the tests of searching.

1-9 prompt   10-19 what the model writes   20-29 what the environment writes   100 and more single characters
"""

import string
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from envmask_trl import Document, RolloutLimits, ScriptedSampler, SearchTool, TagProtocol, run_rollouts

PIECES = {
    1: "Where is Oslo?",
    2: "Where is Lima?",
    10: "<search>",
    11: "Oslo",
    12: "</search>",
    13: "<answer>",
    14: "Norway",
    15: "</answer>",
    16: "thinking ",
    17: "</search>\n<",
    18: "Lima",
    20: "\n\n",
    21: "<information>",
    22: "Doc 1(Title: Oslo) In Norway.",
    23: "</information>",
    24: "Doc 1(Title: Lima) In Peru.",
}
FIRST_CHARACTER = 100
DOCUMENTS = {"Oslo": "In Norway.", "Lima": "In Peru."}


def tagged_tokenizer() -> PreTrainedTokenizerFast:
    """Unigram: the pieces above wherever they fit, single characters elsewhere; the end-of-turn token is 19."""
    characters = dict(enumerate(string.printable, start=FIRST_CHARACTER))
    pieces = PIECES | characters
    vocabulary = [(pieces.get(i, f"~{i}~"), -1.0 if i in PIECES else -9.0) for i in range(max(pieces) + 1)]
    unigram = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=False))
    unigram.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=unigram, clean_up_tokenization_spaces=False)
    tokenizer.add_special_tokens({"eos_token": "~19~", "pad_token": "~0~"})
    assert tokenizer.eos_token_id == 19
    return tokenizer


class TwoDocuments:
    """Finds the document whose title stands in the query, and keeps each batch of queries."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        self.batches.append(list(queries))
        return [
            [Document(title, title, text, 1.0) for title, text in DOCUMENTS.items() if title in query][:k]
            for query in queries
        ]


def play(*scripts, retriever=None, prompts=None, limits=None, **options):
    """Rollouts of scripted turns, given as ids, under the tag protocol."""
    tokenizer = tagged_tokenizer()
    return run_rollouts(
        prompts or ["Where is Oslo?"] * len(scripts),
        tokenizer=tokenizer,
        sampler=ScriptedSampler(scripts),
        protocol=TagProtocol(SearchTool(retriever or TwoDocuments()).search, tokenizer, **options),
        limits=limits or RolloutLimits(),
    )
