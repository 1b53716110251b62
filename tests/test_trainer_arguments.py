"""Data and arguments that a trainer could not use are one sentence when it is made, and none is silently ignored."""

import pytest
import torch
from datasets import Dataset

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer
from envmask_trl.training.sampling import open_sampler

from .tiny import add, impatient_model, tiny_tokenizer, user

QUESTIONS = [{"prompt": user(f"row {number}")} for number in range(4)]


def lengths(completion_ids, **columns):
    return [float(len(ids)) for ids in completion_ids]


def make_trainer(tmp_path, *, reward=lengths, rows=QUESTIONS, rollout_func=None, parser=None, **options):
    tokenizer = tiny_tokenizer()
    beside = {name: options.pop(name) for name in ("tools", "eval_dataset", "environment_factory") if name in options}
    args = EnvMaskGRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=24,
        max_steps=1,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    return EnvMaskGRPOTrainer(
        impatient_model(tokenizer),
        reward,
        args,
        Dataset.from_list(rows),
        processing_class=tokenizer,
        rollout_func=rollout_func,
        parser=parser,
        **beside,
    )


def rollout(prompts, trainer, **columns):
    """Two rows end in the stop token and two do not."""
    end = trainer.processing_class.eos_token_id
    ids = [[10, 20, end if number % 2 else 11] for number in range(len(prompts))]
    base = {"prompt_ids": [[1, 2]] * len(prompts), "completion_ids": ids, "logprobs": [[-0.1] * 3] * len(prompts)}
    return {**base, "env_mask": [[1, 0, 1]] * len(prompts), **columns}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "x"}] * 4, r"train_dataset has the columns \['question'\], expected one named 'prompt'"),
        ([*QUESTIONS[:3], {"prompt": None}], "train_dataset has no prompt in row 3, found None"),
        ([*QUESTIONS[:2], {"prompt": []}], r"train_dataset has no prompt in row 2, found \[\]"),
        ([{"prompt": "a"}, {"prompt": ""}], "train_dataset has no prompt in row 1, found ''"),
        ([{"prompt": [{"from": "human", "value": "a"}]}] * 4, "row 0 the prompt .*'human'.* rename their keys"),
        ([*QUESTIONS[:3], {"prompt": [{"role": None, "content": "a"}]}], "has in row 3 a message of the role None"),
        ([{"prompt": "a"}] * 4, "the prompts of train_dataset are texts, which the chat template cannot show tools in"),
    ],
)
def test_data_that_no_rollout_could_start_from_is_named_with_its_row(rows, message, tmp_path):
    """Text prompts trained on without the model ever being shown its tools."""
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, rows=rows, tools=[add])


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_column_of_the_evaluation_data_named_like_a_reward_keyword_is_refused(as_dict, tmp_path):
    taken = Dataset.from_list([{"prompt": user("row"), "unfinished": True}])
    with pytest.raises(ValueError, match=r"columns \['unfinished'\], .* rename them \(hard\)|\(eval_dataset\)"):
        make_trainer(tmp_path, eval_dataset={"hard": taken} if as_dict else taken)


def test_a_parser_without_a_tool_is_refused_and_not_called_in_the_middle_of_a_step(tmp_path):
    with pytest.raises(ValueError, match="parser reads calls, but there is no tool to call"):
        make_trainer(tmp_path, parser=lambda turn: None)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tools": [add]}, "tools or environment_factory"),
        ({"parser": lambda turn: None}, "parser"),
        ({"sampler": "kept_cache"}, "sampler"),
        ({"mask_env_tokens": False}, "mask_env_tokens=False"),
        ({"unfinished_policy": "drop"}, "unfinished_policy='drop'"),
        ({"void_policy": "mask_loss"}, "void_policy"),
    ],
)
def test_what_a_rollout_function_would_ignore_is_refused(options, name, tmp_path):
    """I-105. With tools, TRL plays its own loop behind the function and forgets the env_mask that it returned."""
    with pytest.raises(ValueError, match=f"{name} beside rollout_func"):
        make_trainer(tmp_path, rollout_func=rollout, **options)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
@pytest.mark.parametrize("options", [{"mask_truncated_completions": True}, {"unfinished_policy": "mask_loss"}])
def test_truncated_rows_of_a_rollout_function_are_left_out_when_asked_for(options, tmp_path):
    """The option was turned into a policy of our loop, which a rollout function does not run."""
    trainer = make_trainer(tmp_path, rollout_func=rollout, **options)
    batches = []
    trainer.after_scoring = batches.append
    trainer.train()
    masks = (batches[0]["completion_mask"] * batches[0]["tool_mask"]).tolist()
    assert sorted(masks) == [[0, 0, 0]] * 2 + [[1, 0, 1]] * 2


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "rollout_func returned a NoneType without prompt_ids, completion_ids, logprobs; expected a dict"),
        ({"completion_ids": [[1]] * 4}, "rollout_func returned a dict without prompt_ids, logprobs"),
        ({"prompt_ids": [[1], [], [1], [1]]}, "row 1: prompt_ids is empty"),
        ({"completion_ids": [[1, 2, 3], None, [1], [1]]}, "row 1: completion_ids is None, expected a list of token"),
        ({"logprobs": [[-0.1] * 3, None, [-0.1] * 3, [-0.1] * 3]}, "row 1: logprobs has nothing"),
    ],
)
def test_what_a_rollout_function_returns_wrongly_is_named_by_row(output, message, tmp_path):
    def wrong(prompts, trainer):
        is_whole = output is None or "without" in message
        return output if is_whole else rollout(prompts, trainer, **output)

    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, rollout_func=wrong).train()


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
def test_tensors_of_a_rollout_function_are_rows_too(tmp_path):
    def tensors(prompts, trainer):
        output = rollout(prompts, trainer)
        return {name: torch.tensor(values) for name, values in output.items()}

    trainer = make_trainer(tmp_path, rollout_func=tensors)
    batches = []
    trainer.after_scoring = batches.append
    trainer.train()
    assert batches[0]["tool_mask"].tolist() == [[1, 0, 1]] * 4


@pytest.mark.parametrize("option", ["max_new_tokens", "max_length", "eos_token_id", "num_return_sequences"])
def test_an_option_of_generate_that_turns_do_not_read_is_refused(option, tmp_path):
    with pytest.raises(ValueError, match=f"generation_kwargs has {option}, .*; set"):
        make_trainer(tmp_path, generation_kwargs={option: 3})


def test_beams_are_not_ignored_but_left_to_generate(tmp_path):
    assert not make_trainer(tmp_path, generation_kwargs={"num_beams": 2}).keeps_cache


def test_stop_strings_of_generation_kwargs_end_a_turn(tmp_path):
    trainer = make_trainer(tmp_path, generation_kwargs={"stop_strings": "a"})
    with open_sampler(trainer) as sampler:
        assert [list(criterion.stop_strings) for criterion in sampler.criteria] == [["a"]]
    trainer.train()


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_an_infinite_reward_is_named_and_not_trained_as_no_advantage(value, tmp_path):
    def reward(completions, **columns):
        return [0.0, value, 0.0, 1.0]

    with pytest.raises(ValueError, match=f"the reward function 'reward' gave rollout 1 {value}, expected a finite"):
        make_trainer(tmp_path, reward=reward).train()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tool_timeout_s", float("nan"), "a finite number"),
        ("tool_timeout_s", None, "a finite number"),
        ("tool_retries", None, "a finite number"),
        ("tool_retries", 1.5, "a whole number"),
        ("turn_discount", "x", "a finite number"),
        ("step_advantage_weight", float("inf"), "a finite number"),
        ("shared_prefix", "no", "True or False"),
        ("mask_env_tokens", None, "True or False"),
    ],
)
def test_an_option_of_the_wrong_type_is_named_before_any_work(name, value, expected, tmp_path):
    with pytest.raises(ValueError, match=f"{name} is .*, expected {expected}"):
        EnvMaskGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **{name: value})


def test_a_data_set_without_rows_is_no_training_of_zero_steps(tmp_path):
    with pytest.raises(ValueError, match="eval_dataset has no rows"):
        make_trainer(tmp_path, eval_dataset=Dataset.from_list(QUESTIONS).select([]))


def test_an_output_dir_that_is_a_file_is_named_before_a_model_is_loaded(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("")
    with pytest.raises(ValueError, match=r"output_dir is '.*notes.txt/run', but .*notes.txt is a file"):
        make_trainer(file / "run")


def undocumented(a: int):
    return a


def untyped(a):
    """Untyped.

    Args:
        a: A number.
    """


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (add, r"tools is the function add, expected a list of functions"),
        ([add, "weather"], r"tools\[1\] is 'weather', expected a function"),
        ([{"name": "add"}], r"tools\[0\] is a dict, expected a function"),
        ([add, undocumented], r"tools\[1\], undocumented: .* no docstring.* `Args:` line"),
        ([untyped], r"tools\[0\], untyped: .* missing a type hint"),
        ([add, add], "several tools are named add, and a call could reach only one"),
    ],
)
def test_what_is_no_tool_is_named_before_a_model_is_loaded(tools, message, tmp_path):
    """An AttributeError from inside TRL, or, of two tools with one name, the second in place of the first."""
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, tools=tools)


def asks_for_gold(completions, gold, **columns):
    return [0.0] * len(completions)


def takes_no_columns(completions):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            asks_for_gold,
            r"'asks_for_gold' asks for gold, which is neither a column of the dataset \(\) nor one of .*texts",
        ),
        (takes_no_columns, r"'takes_no_columns' cannot take .*model_texts.*; add \*\*kwargs"),
        (lambda completions, /, **columns: [], "'<lambda>' asks for completions"),
    ],
)
def test_a_reward_that_could_not_be_called_is_named_before_a_batch_is_sampled_for_it(reward, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, reward=reward)


class Room:
    def reset(self) -> None: ...

    def add(self, a: int) -> str:
        """Add.

        Args:
            a: A number.
        """


class Lobby(Room):
    def reset(self, **columns) -> None: ...


class Cellar(Lobby):
    def dig(self, depth): ...


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Room, r"Room.reset cannot take prompt, .*; add \*\*kwargs"),
        (Lobby, "several tools are named add"),
        (Cellar, "a method of Cellar, dig: .*no docstring"),
    ],
)
def test_an_environment_that_could_not_start_or_be_shown_is_named(environment, message, tmp_path):
    """Its method took the place of the tool with the same name."""
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, tools=[add], environment_factory=environment)
