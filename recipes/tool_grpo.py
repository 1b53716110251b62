"""GRPO with tools on any model; which model, data, tools and rewards stands in a YAML file or on the command line.

    python -m recipes.weather_calculator.quickstart                                        # leaves a model and tasks
    accelerate launch --cpu --quiet recipes/tool_grpo.py --config recipes/configs/quickstart_cpu.yaml  # goes on from it
    accelerate launch --quiet recipes/tool_grpo.py --config recipes/configs/one_gpu_lora.yaml --learning_rate 2e-5
    accelerate launch --quiet recipes/tool_grpo.py --config FILE.yaml --resume_from_checkpoint true

A mistake in what is given ends in one sentence and exit status 2; without `--quiet`, accelerate's CalledProcessError
stands below it.
A line of progress is printed every few seconds; all that is logged goes to `report_to` and into the checkpoints.

Run it in the folder from which your tools and rewards can be imported. Every field of `EnvMaskGRPOConfig` and of
`trl.ModelConfig` (LoRA, QLoRA, dtype) may stand in the file; `--help` lists them. Expect `reward` in the log to rise,
and in output_dir the model, its checkpoints and each step's rollouts as parquet.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any, NoReturn

from datasets import Dataset, load_dataset
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, ProgressLine, checkpoint_to_resume


@dataclass
class ScriptArguments:
    """What the trainer is given; import paths are written `package.module:name` or `package.module.name`.

    Example:
        ScriptArguments(dataset="tasks.jsonl", tools=["my_tools:weather"], reward_funcs=["my_rewards:correct"])
    """

    dataset: str = field(metadata={"help": "JSONL file, or hub id, with `prompt` (messages) or `question` per row."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a dataset of the hub."})
    dataset_split: str = field(default="train", metadata={"help": "Split of a dataset of the hub."})
    eval_dataset: str | None = field(default=None, metadata={"help": "Like dataset, for `eval_strategy`."})
    system_prompt: str | None = field(default=None, metadata={"help": "First message of prompts without a system's."})
    tools: list[str] = field(default_factory=list, metadata={"help": "Import paths of functions the model may call."})
    environment_factory: str | None = field(default=None, metadata={"help": "Import path of a class or function."})
    reward_funcs: list[str] = field(default_factory=list, metadata={"help": "Import paths of reward functions."})


def main(script: ScriptArguments, config: EnvMaskGRPOConfig, model: ModelConfig) -> None:
    try:
        asked = config.resume_from_checkpoint
        latest = str(asked).lower() == "true"
        resume = checkpoint_to_resume(latest or asked, config.output_dir, has_adapter=model.use_peft)
        trainer = make_trainer(script, config, model)
    except (ValueError, OSError, ImportError) as error:
        refuse(error)
    ProgressLine("GRPO").instead_of_the_log(trainer)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(config.output_dir)
    trainer.accelerator.end_training()


def make_trainer(script: ScriptArguments, config: EnvMaskGRPOConfig, model: ModelConfig) -> EnvMaskGRPOTrainer:
    check_model_path(model.model_name_or_path)
    given: dict[str, Any] = {
        "reward_funcs": [import_path(path, "reward_funcs") for path in script.reward_funcs],
        "tools": [import_path(path, "tools") for path in script.tools],
        "train_dataset": read_dataset(script.dataset, script),
        "eval_dataset": read_dataset(script.eval_dataset, script) if script.eval_dataset else None,
    }
    if script.environment_factory:
        given["environment_factory"] = import_path(script.environment_factory, "environment_factory")
    options = config.model_init_kwargs or {}
    assert isinstance(options, dict)  # the config has read it, where it was a text
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **options,
    }
    return EnvMaskGRPOTrainer(
        model=model.model_name_or_path,
        args=config,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        **given,
    )


def refuse(error: Exception) -> NoReturn:
    """End the program with one sentence and exit status 2."""
    print(f"tool_grpo: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


def check_model_path(path: str | None) -> None:
    """Raise where a folder is meant and there is none; an id of the hub is `name` or `organisation/name`."""
    if path is None:
        raise ValueError("model_name_or_path is not set; expected a model's folder or its id on the hub")
    if (path.startswith((".", "/", "~")) or path.count("/") > 1) and not Path(path).is_dir():
        raise FileNotFoundError(f"model_name_or_path is {path!r}, but there is no such folder")


def import_path(path: str, what: str) -> Callable[..., Any]:
    """The object behind `package.module:name` or `package.module.name`, found from the working directory on."""
    module_name, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not name:
        raise ValueError(f"{what}: {path!r} is not an import path; expected `package.module:name`")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, one that it imports is not
        raise ValueError(f"{what}: no module {error.name!r} for {path!r} in {os.getcwd()} or installed") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"{what}: {module.__file__} has no function or class {name!r}, which {path!r} asks for")
    return found


def read_dataset(source: str, script: ScriptArguments) -> Dataset:
    """The rows of a JSONL file or of a dataset of the hub, each with a `prompt` of messages."""
    if not source.endswith((".jsonl", ".json")):
        rows = load_dataset(source, name=script.dataset_config, split=script.dataset_split)
        return rows.map(lambda row, i: with_prompt(row, f"{source}, row {i}", script.system_prompt), with_indices=True)
    if not Path(source).is_file():
        raise FileNotFoundError(f"dataset: there is no file {source!r} in {os.getcwd()}")
    lines = enumerate(Path(source).read_text(encoding="utf-8").split("\n"), start=1)
    rows = [(f"{source}, row {number}", line) for number, line in lines if line.strip()]
    if not rows:
        raise ValueError(f"dataset: {source} has no rows")
    return Dataset.from_list([with_prompt(read_row(text, where), where, script.system_prompt) for where, text in rows])


def read_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = loads(line)
    except JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error}); expected one object a line") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: found {type(row).__name__}, expected an object with `prompt` or `question`")
    return row


def with_prompt(row: dict[str, Any], where: str, system_prompt: str | None) -> dict[str, Any]:
    """The row with its `prompt`; a `question` becomes one user message. ValueError without either."""
    prompt = row.get("prompt")
    if not prompt and row.get("question"):
        prompt = [{"role": "user", "content": row["question"]}]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"{where}: found columns {sorted(row)}, expected `prompt` (messages) or `question` (a text)")
    if system_prompt is not None and prompt[0]["role"] != "system":
        prompt = [{"role": "system", "content": system_prompt}, *prompt]
    return {**row, "prompt": prompt}


def parse(arguments: list[str] | None = None) -> tuple[ScriptArguments, EnvMaskGRPOConfig, ModelConfig]:
    try:
        # To TRL, classes and what is parsed into them are NewTypes of Any, which nothing is.
        parser = TrlParser((ScriptArguments, EnvMaskGRPOConfig, ModelConfig))  # type: ignore[arg-type]
        return parser.parse_args_and_config(arguments)  # type: ignore[return-value]
    except (ValueError, FileNotFoundError) as error:
        refuse(error)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # a script's own folder is all that Python would look in
    main(*parse())
