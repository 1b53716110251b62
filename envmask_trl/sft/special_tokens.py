"""Makes tags tokens of their own, so that no boundary falls inside one. Knows a tokenizer and a model's embeddings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

if TYPE_CHECKING:
    from peft import LoraConfig


def register_special_tokens(
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel | None,
    tags: Sequence[str],
    *,
    peft_config: "LoraConfig | None" = None,
) -> list[int]:
    """Give each tag one id; its embedding starts as the mean of the pieces that spelled it until now.

    Rows are added to the input embeddings and to the output embeddings. A vocabulary that was padded to a round size
    keeps that size while there is room. Tags that are tokens already stay as they are. They are added as ordinary
    tokens, so `decode(skip_special_tokens=True)` keeps them and a reward function sees them.

    Example:
        ids = register_special_tokens(tokenizer, model, ["<information>", "</information>"], peft_config=lora)
        lora.trainable_token_indices     # {"embed_tokens": ids}, so LoRA trains these rows and no others

    Args:
        tokenizer: a fast tokenizer; changed in place. Save it with the model.
        model: changed in place; None to change the tokenizer alone.
        tags: such as those of a `TagFormat`.
        peft_config: of a run that trains the tags (call this in every such run, resumed ones too). Its
            `trainable_token_indices` gets the new ids, of the output embeddings too where those are not tied to
            the input's.

    Returns:
        The ids of `tags`, in order.

    Raises:
        ValueError: a tag is empty, or has white space at an end, which other texts would then lose.
    """
    if isinstance(tags, str):
        raise ValueError(f"tags is {tags!r}, expected a list of tags; a text alone would be read letter by letter")
    for tag in tags:
        if not isinstance(tag, str) or not tag or tag != tag.strip():
            raise ValueError(f"the tag is {tag!r}, expected a text without white space around it")
    known = set(tokenizer.get_vocab())
    new = [tag for tag in dict.fromkeys(tags) if tag not in known]
    pieces = {tag: tokenizer(tag, add_special_tokens=False)["input_ids"] for tag in new}
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in new])
    vocabulary = tokenizer.get_vocab()
    ids = {tag: vocabulary[tag] for tag in tags}
    if model is not None and new:
        if len(tokenizer) > embedding_rows(model):
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        for layer in embedding_layers(model).values():
            start_from_pieces(layer, {ids[tag]: spelled for tag, spelled in pieces.items()})
    if peft_config is not None:
        add_trainable(peft_config, model, [ids[tag] for tag in dict.fromkeys(tags)])
    return [ids[tag] for tag in tags]


def embedding_rows(model: PreTrainedModel) -> int:
    layer: Any = model.get_input_embeddings()
    return layer.num_embeddings


def embedding_layers(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The input embeddings and, where they are other weights, the output embeddings, by the end of their name."""
    layers: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    if layers[1] is None or layers[1].weight is layers[0].weight:
        layers = layers[:1]
    modules = model.named_modules()
    return {name.rpartition(".")[2]: module for name, module in modules if any(module is layer for layer in layers)}


@torch.no_grad()
def start_from_pieces(layer: Any, pieces: dict[int, list[int]]) -> None:
    weight, bias = layer.weight, getattr(layer, "bias", None)  # [V, H], [V]
    for token_id, spelled in pieces.items():
        weight[token_id] = weight[spelled].float().mean(dim=0).to(weight.dtype)
        if isinstance(bias, torch.Tensor):
            bias[token_id] = bias[spelled].float().mean().to(bias.dtype)


def add_trainable(peft_config: "LoraConfig", model: PreTrainedModel | None, ids: list[int]) -> None:
    """Put `ids` into `trainable_token_indices`, beside those that are there."""
    give_wrapped_heads_their_bias()
    names = list(embedding_layers(model)) if model is not None else ["embed_tokens"]
    present = peft_config.trainable_token_indices or {}
    if isinstance(present, list):
        present = {names[0]: present}
    peft_config.trainable_token_indices = present | {name: sorted({*present.get(name, []), *ids}) for name in names}


def give_wrapped_heads_their_bias() -> None:
    """TRL's fused LM head reads `lm_head.bias`, which peft's wrapper around trainable tokens does not pass on."""
    from peft.utils.other import TrainableTokensWrapper

    if not isinstance(getattr(TrainableTokensWrapper, "bias", None), property):
        setattr(TrainableTokensWrapper, "bias", property(lambda self: self.original_module.bias))  # noqa: B010
