"""Is this a model, is this a tokenizer, and do they fit each other? Knows ids and embeddings: no text, no template."""

from functools import lru_cache
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase


def check_model(model: Any) -> None:
    """Raise ValueError on what is no model, such as its name.

    Example:
        check_model("gpt2")  # model is 'gpt2', expected a transformers model; write ..from_pretrained('gpt2')
    """
    if isinstance(model, nn.Module):
        return
    remedy = "pass the model first, then its tokenizer"
    if not isinstance(model, PreTrainedTokenizerBase):
        name = repr(model) if isinstance(model, str) else "..."
        remedy = f"write AutoModelForCausalLM.from_pretrained({name})"
    raise ValueError(f"model is {found(model)}, expected a transformers model; {remedy}")


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ValueError on what is no tokenizer, such as a model's name."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    name = repr(tokenizer) if isinstance(tokenizer, str) else "..."
    raise ValueError(
        f"tokenizer is {found(tokenizer)}, expected a transformers tokenizer; write "
        f"AutoTokenizer.from_pretrained({name})"
    )


def check_pair(model: Any, tokenizer: Any) -> None:
    """Both of the above, and `check_ids_fit`."""
    check_model(model)
    check_tokenizer(tokenizer)
    check_ids_fit(model, tokenizer)


def check_ids_fit(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError where the tokenizer can produce an id that the model's embedding has no row for.

    Example:
        # the tokenizer has ids up to 330, but the model's embedding has 320 rows (ids 0 to 319); ..
    """
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)  # some models embed in a way of their own
    highest = highest_id(tokenizer, len(tokenizer))
    if rows is not None and highest >= rows:
        raise ValueError(
            f"the tokenizer has ids up to {highest}, but the model's embedding has {rows} rows (ids 0 to {rows - 1}); "
            f"call model.resize_token_embeddings({highest + 1}), or use the model's own tokenizer"
        )


@lru_cache(maxsize=1)
def highest_id(tokenizer: PreTrainedTokenizerBase, size: int) -> int:
    """The highest id of the vocabulary, which may have holes; `size` is its length, which grows with added tokens."""
    return max(tokenizer.get_vocab().values(), default=-1)


def found(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
