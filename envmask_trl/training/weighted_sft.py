"""`trl.SFTTrainer` with a weight per token. Knows the column `loss_weights`; everything else stays TRL's."""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ..sft.map import WEIGHT_COLUMN


class WeightedCollator(DataCollatorForLanguageModeling):
    """TRL's collator, and `loss_weights` padded with zeros beside the labels.

    Example:
        WeightedCollator(pad_token_id=0)([{"input_ids": [1, 2], "labels": [-100, 2], "loss_weights": [0.0, 0.5]}])
    """

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        for example in examples:
            ids, weights = example["input_ids"], example.get(WEIGHT_COLUMN)
            if weights is None or len(weights) != len(ids):
                found = "none" if weights is None else len(weights)
                raise ValueError(
                    f"a row has {len(ids)} input_ids and {found} {WEIGHT_COLUMN}; make both with mask_dataset, and cut "
                    "rows by its max_length instead of the config's"
                )
        output = super().torch_call(examples)
        weights = pad_sequence([torch.tensor(example[WEIGHT_COLUMN]) for example in examples], batch_first=True)
        missing = output["labels"].shape[1] - weights.shape[1]  # where lengths are rounded up
        return {**output, WEIGHT_COLUMN: torch.nn.functional.pad(weights, (0, missing))}  # [B, T]


class WeightedSFTTrainer(SFTTrainer):
    """SFT on the rows of `mask_dataset(weights=PartWeights(...))` whose weights are fractions.

        loss = sum(weight * -log p) / (number of labelled tokens)

    The denominator is TRL's and counts a token of weight 0.2 as one, so a weight scales that token's gradient and no
    other's. With all weights 1 the loss is TRL's.

    Example:
        rows, report = mask_dataset(dataset, tokenizer, weights=PartWeights(thought=0.2))
        WeightedSFTTrainer(model, SFTConfig(...), train_dataset=rows, processing_class=tokenizer).train()

    Raises:
        ValueError: the config packs rows, or has a loss or a smoothing that takes no weights.
    """

    def __init__(self, model: Any, args: SFTConfig, **kwargs: Any):
        for name, wanted in (("packing", False), ("padding_free", False), ("label_smoothing_factor", 0.0)):
            if getattr(args, name) != wanted:
                raise ValueError(
                    f"{name} is {getattr(args, name)!r}, which weights do not go with; set {name}={wanted}"
                )
        if args.loss_type != "nll":
            raise ValueError(f"loss_type is {args.loss_type!r}, which weights do not go with; set loss_type='nll'")
        args.remove_unused_columns = False  # else the weights are removed
        super().__init__(model, args, **kwargs)
        plain: Any = self.data_collator
        self.data_collator = WeightedCollator(
            pad_token_id=plain.pad_token_id, pad_to_multiple_of=plain.pad_to_multiple_of
        )

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """TRL's loss of a model whose log-probs are scaled by the weights of the tokens that they predict."""
        weights = inputs.pop(WEIGHT_COLUMN)[:, 1:]  # [B, T-1]

        def weighted(**kwargs: Any) -> Any:
            outputs = model(**kwargs)
            if kwargs.get("fused_lm_head"):
                outputs.log_probs = outputs.log_probs * weights.to(outputs.log_probs)
            return outputs

        return super().compute_loss(weighted, inputs, return_outputs, num_items_in_batch)
