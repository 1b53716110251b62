"""What a trainer was given, checked before anything is sampled. Knows data sets and options: no tensors."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset, DatasetDict
from pyarrow import compute
from pyarrow.types import is_large_list, is_large_string, is_list, is_string
from torch import nn
from trl import GRPOConfig

from ..rollout.model_and_tokenizer import check_ids_fit, check_model, check_tokenizer
from .functions_given import check_accepts, check_environment_factory, check_reward_function, check_tools, described
from .prompt_roles import check_roles
from .rows import REWARD_COLUMNS

if TYPE_CHECKING:
    from .trainer import EnvMaskGRPOTrainer

TRL_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
NO_KEYWORDS = ("prompt", "completion", "completion_ids")  # columns that TRL keeps from reward functions
ELSEWHERE = {  # options of `generate` that this library has another place for
    "max_new_tokens": "set max_turn_tokens or max_completion_length",
    "max_length": "set max_completion_length",
    "eos_token_id": "set model.generation_config.eos_token_id",
    "num_return_sequences": "set num_generations",
}


def check_given(model: Any, args: Any, given: Mapping[str, Any], *, rewards: Any = None, parser: Any = None) -> None:
    """Raise ValueError on what is of another kind than the trainer takes, before a model is loaded.

    Example:
        check_given("gpt2", {"output_dir": "runs/agent"}, {})  # args is a dict, expected an EnvMaskGRPOConfig ..
    """
    if not isinstance(model, str):
        check_model(model)
    if args is not None and not isinstance(args, GRPOConfig):
        remedy = "EnvMaskGRPOConfig(**args)" if isinstance(args, Mapping) else "EnvMaskGRPOConfig(output_dir=...)"
        raise ValueError(f"args is {described(args)}, expected an EnvMaskGRPOConfig or a GRPOConfig; write {remedy}")
    for index, reward in enumerate(rewards if isinstance(rewards, list) else [rewards]):
        if not (callable(reward) or isinstance(reward, (str, nn.Module, type(None)))):
            where = f"reward_funcs[{index}]" if isinstance(rewards, list) else "reward_funcs"
            raise ValueError(
                f"{where} is {described(reward)}, expected a function that scores rollouts, or a list of them"
            )
    if isinstance(given.get("processing_class"), str):
        check_tokenizer(given["processing_class"])
    check_tools(given.get("tools"))
    check_environment_factory(given.get("environment_factory"))
    if parser is not None and not callable(parser):
        raise ValueError(f"parser is {described(parser)}, expected a function from a turn's text to a ParsedTurn")


def check_output_dir(args: GRPOConfig) -> None:
    """Raise ValueError where nothing could be written, before hours of work have nowhere to go."""
    path = Path(str(args.output_dir))
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise ValueError(f"output_dir is {str(path)!r}, but {nearest} is a file, expected a folder; choose another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"output_dir is {str(path)!r}, but {nearest} cannot be written to; choose another folder")


def check_trainer(trainer: "EnvMaskGRPOTrainer", *, parser: object | None) -> None:
    """Raise ValueError on data that no rollout could start from, and on arguments that nothing would read."""
    evaluated = trainer.eval_dataset
    named = {"train_dataset": trainer.train_dataset}
    named |= dict(evaluated) if isinstance(evaluated, Mapping) else {"eval_dataset": evaluated}
    for name, dataset in named.items():
        check_dataset(name, dataset, has_tools=bool(trainer.tools) and trainer.protocol is None)
        if dataset is not None and trainer.rollout_func is None:  # which may add keywords
            check_keywords(trainer, dataset)
        if isinstance(dataset, Dataset) and trainer.rollout_func is None:
            check_roles(name, dataset, trainer.processing_class, trainer.template_kwargs)
    check_ids_fit(trainer.model, trainer.processing_class)
    if None in trainer.eos_token_ids:
        raise ValueError("the tokenizer has no eos token, so no turn could end; set tokenizer.eos_token")
    given: Any = trainer.args.generation_kwargs or {}
    for option, remedy in ELSEWHERE.items():
        if option in given:
            raise ValueError(f"generation_kwargs has {option}, which the turns of a rollout do not read; {remedy}")
    check_temperature(trainer.args.temperature, given.get("temperature"))
    if trainer.rollout_func is not None:
        check_beside_rollout_func(trainer, parser=parser)
    elif parser is not None and not trainer.tools and trainer.protocol is None:
        raise ValueError("parser reads calls, but there is no tool to call; pass tools, or leave parser out")


def check_keywords(trainer: "EnvMaskGRPOTrainer", dataset: Any) -> None:
    """Raise ValueError where a reward function or a `reset` cannot be called with the keywords that it will get."""
    given = {*TRL_KEYWORDS, *REWARD_COLUMNS}
    if trainer.environment_factories is not None:
        given.add("environments")
    names = getattr(dataset, "column_names", None)
    columns = None if names is None else [name for name in names if name not in NO_KEYWORDS]
    for function in trainer.reward_funcs:
        if not isinstance(function, nn.Module):
            check_reward_function(function, given=given, columns=columns)
    for environment in trainer.probed_environments:
        kept = [name for name in names or () if name != "environment"]  # which chooses among several environments
        check_accepts(f"{type(environment).__name__}.reset", environment.reset, kept)


def check_temperature(of_the_loss: float, of_sampling: float | None) -> None:
    """The loss divides logits by the temperature that its tokens were sampled with, so it has to be told.

    Raises:
        ValueError: it is not told, or nothing can be divided by it.
    """
    if of_sampling not in (None, of_the_loss):
        raise ValueError(
            f"generation_kwargs has temperature {of_sampling}, but the loss would compute log-probs at {of_the_loss}; "
            "set the config's own temperature instead"
        )
    if not of_the_loss > 0:
        raise ValueError(f"temperature is {of_the_loss}, expected more than 0: the loss divides logits by it")


def check_dataset(name: str, dataset: Any, *, has_tools: bool) -> None:
    """Columns, and in a data set that is at hand, every prompt.

    Raises:
        ValueError: names the data set, and the row.
    """
    if isinstance(dataset, DatasetDict) and name == "train_dataset":
        raise ValueError(f"{name} is a DatasetDict of {', '.join(dataset)}, expected one of these; write dataset[...]")
    columns = getattr(dataset, "column_names", None)
    if columns is None:
        return
    if isinstance(dataset, Dataset) and not len(dataset):
        raise ValueError(f"{name} has no rows, expected at least one; was everything filtered out?")
    taken = sorted(set(REWARD_COLUMNS) & set(columns))
    if taken:
        raise ValueError(
            f"the dataset has columns {taken}, which reward functions get from the trainer; rename them ({name})"
        )
    if "prompt" not in columns:
        raise ValueError(f"{name} has the columns {columns}, expected one named 'prompt'; rename the one with prompts")
    if not isinstance(dataset, Dataset):
        return
    row = first_without_prompt(dataset)
    if row is not None:
        raise ValueError(
            f"{name} has no prompt in row {row}, found {dataset[row]['prompt']!r}, expected a text or at least one "
            "message; remove the row"
        )
    first = dataset[0]["prompt"]
    if isinstance(first, list) and not all(isinstance(message, Mapping) and "role" in message for message in first):
        raise ValueError(
            f"{name} has in row 0 the prompt {first!r}, expected messages such as "
            "{'role': 'user', 'content': '...'}; rename their keys"
        )
    if has_tools and isinstance(first, str):
        raise ValueError(
            f"the prompts of {name} are texts, which the chat template cannot show tools in; make each a list of "
            "messages such as [{'role': 'user', 'content': '...'}]"
        )


def first_without_prompt(dataset: Dataset) -> int | None:
    """The first row whose prompt is None, an empty text or an empty list; counted in Arrow, no row is decoded."""
    column = dataset.select_columns(["prompt"]).with_format("arrow")[:]["prompt"]
    if is_string(column.type) or is_large_string(column.type):
        lengths = compute.binary_length(column)
    elif is_list(column.type) or is_large_list(column.type):
        lengths = compute.list_value_length(column)
    else:
        return None
    row = compute.index(compute.equal(compute.fill_null(lengths, 0), 0), True).as_py()
    return None if row < 0 else row


def check_beside_rollout_func(trainer: "EnvMaskGRPOTrainer", *, parser: object | None) -> None:
    """A rollout function samples and calls by itself: options of our loop would change nothing.

    Raises:
        ValueError: names them.
    """
    args = trainer.args
    unread = {
        "tools or environment_factory": trainer.tools,
        "parser": parser,
        "protocol": trainer.protocol,
        "sampler": args.sampler != "auto",
        "mask_env_tokens=False": not args.mask_env_tokens,
        "unfinished_policy='drop'": args.unfinished_policy == "drop",
        "void_policy": args.void_policy != "train",
    }
    found = [name for name, is_given in unread.items() if is_given]
    if found:
        raise ValueError(
            f"{', '.join(found)} beside rollout_func, which plays the rollouts itself and would ignore it; leave out "
            "one of the two"
        )
