"""Your demonstrations and your model: `trl.SFTTrainer` on rows that `mask_dataset` has masked and reported on.

    accelerate launch --quiet -m recipes.agent_sft --config recipes/agent_sft/own_data.yaml
    python -m recipes.agent_sft --dataset mine.jsonl --tags react --model_name_or_path Qwen/Qwen3-0.6B --output_dir out

A JSONL row has `messages` (and `tools`), or with `tags` a `prompt` and a `completion`, or `text`. Every field of
`SFTConfig` and of `trl.ModelConfig` (LoRA, dtype, attn_implementation) may stand in the file; `--help` lists them.
A mistake in what is given ends in one sentence and exit status 2; without `--quiet`, accelerate's own error stands
below it.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from datasets import Dataset, load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config

from envmask_trl import (
    PartWeights,
    WeightedSFTTrainer,
    check_packing,
    mask_dataset,
    register_special_tokens,
)


@dataclass
class ScriptArguments:
    """What is masked, and how.

    Example:
        ScriptArguments(dataset="react.jsonl", tags="react", thought_weight=0.5)
    """

    dataset: str = field(metadata={"help": "JSONL file with `messages`, or with `tags` `prompt` and `completion`."})
    tags: str | None = field(default=None, metadata={"help": "react, thought_action or search_r1; none for messages."})
    new_tokens: list[str] = field(default_factory=list, metadata={"help": "Tags that become tokens of their own."})
    source_column: str | None = field(default=None, metadata={"help": "Column that says where a row came from."})
    max_drop_rate: float = field(default=0.02, metadata={"help": "Largest share of rows that may be dropped."})
    thought_weight: float = field(default=1.0, metadata={"help": "Weight of thoughts in the loss."})
    call_weight: float = field(default=1.0, metadata={"help": "Weight of calls."})
    answer_weight: float = field(default=1.0, metadata={"help": "Weight of answers."})
    mask_failed_turns: bool = field(default=False, metadata={"help": "Leave out turns that were answered by an error."})
    last_turn_only: bool = field(default=False, metadata={"help": "Learn the last turn only."})

    @property
    def weights(self) -> PartWeights:
        return PartWeights(
            thought=self.thought_weight,
            call=self.call_weight,
            answer=self.answer_weight,
            mask_failed_turns=self.mask_failed_turns,
            last_turn_only=self.last_turn_only,
        )


def main(script: ScriptArguments, config: SFTConfig, model_config: ModelConfig) -> None:
    try:
        rows = read_rows(script.dataset)
        if model_config.model_name_or_path is None:
            raise ValueError("model_name_or_path is not set; expected a model's folder or its id on the hub")
        tokenizer = AutoTokenizer.from_pretrained(model_config.model_name_or_path)
        model = AutoModelForCausalLM.from_pretrained(
            model_config.model_name_or_path,
            dtype=model_config.dtype,
            attn_implementation=model_config.attn_implementation,
        )
        peft_config = get_peft_config(model_config)
        assert peft_config is None or isinstance(peft_config, LoraConfig)
        if script.new_tokens:
            register_special_tokens(tokenizer, model, script.new_tokens, peft_config=peft_config)
        check_packing(model, config)
        masked, report = mask_dataset(
            rows,
            tokenizer,
            tags=script.tags,
            weights=script.weights,
            max_length=config.max_length,
            source_column=script.source_column,
            max_drop_rate=script.max_drop_rate,
            num_proc=config.dataset_num_proc,
        )
        print(report)
        chosen = WeightedSFTTrainer if script.weights.fractional else SFTTrainer
        trainer = chosen(model, config, train_dataset=masked, processing_class=tokenizer, peft_config=peft_config)
    except (ValueError, OSError, ImportError) as error:
        refuse(error)
    trainer.train()
    trainer.save_model(config.output_dir)
    trainer.accelerator.end_training()


def refuse(error: Exception) -> NoReturn:
    """End the program with one sentence and exit status 2; a report of dropped rows keeps its lines."""
    print(f"agent_sft: {error}", file=sys.stderr)
    sys.exit(2)


def read_rows(source: str) -> Dataset:
    if not Path(source).is_file():
        raise FileNotFoundError(f"dataset: there is no file {source!r} in {Path.cwd()}")
    return load_dataset("json", data_files=source, split="train")


def parse(arguments: list[str] | None = None) -> tuple[ScriptArguments, SFTConfig, ModelConfig]:
    try:
        # To TRL, classes and what is parsed into them are NewTypes of Any, which nothing is.
        parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))  # type: ignore[arg-type]
        return parser.parse_args_and_config(arguments)  # type: ignore[return-value]
    except (ValueError, FileNotFoundError) as error:
        refuse(error)
