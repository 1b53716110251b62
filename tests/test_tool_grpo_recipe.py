"""The recipe for any model runs from a YAML file, and says in one sentence what is wrong with one."""

import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM

from envmask_trl import load_rollouts
from recipes.tool_grpo import check_model_path, import_path, main, parse, read_dataset

from .launching import ROOT, run
from .tiny import tiny_model, tiny_tokenizer, user

CONFIGS = sorted((ROOT / "recipes" / "configs").glob("*.yaml"))
USER_CODE = '''
def add(a: int, b: int) -> str:
    """The sum of two numbers.

    Args:
        a: A number.
        b: Another number.
    """
    return str(a + b)


def length(completion_ids, answer, **kwargs):
    return [float(len(ids)) for ids in completion_ids]
'''


def prepare(folder: Path, **fields: object) -> Path:
    """A model, tasks, tools and a config in `folder`, as a user has them."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "my_tools.py").write_text(USER_CODE)
    rows = [{"question": f"row {number}", "answer": str(number)} for number in range(4)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model_name_or_path": "model",
        "dataset": "tasks.jsonl",
        "system_prompt": "Add.",
        "tools": ["my_tools:add"],
        "reward_funcs": ["my_tools.length"],
        "output_dir": "out",
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 24,
        "learning_rate": 1.0e-3,
        "max_steps": 2,
        "save_steps": 1,
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config | fields))
    return path


def test_two_steps_from_a_file_and_one_more_after_a_resume(tmp_path, monkeypatch):
    config = prepare(tmp_path, use_peft=True, lora_target_modules="all-linear")
    script = str(ROOT / "recipes" / "tool_grpo.py")
    status, output = run(script, "--config", str(config), cwd=tmp_path, launcher="accelerate")
    assert status == 0, output
    assert "GRPO     2/2  loss " in output and "clip_ratio" not in output  # a line in place of sixty keys
    history = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    assert any("clip_ratio/region_mean" in entry for entry in history)
    rollouts = load_rollouts(tmp_path / "out" / "rollouts")
    assert [row["step"] for row in rollouts] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert rollouts[0]["prompt"][0] == {"role": "system", "content": "Add."}
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()

    resumed = ("--max_steps", "3", "--resume_from_checkpoint", "true")
    status, output = run("-m", "recipes.tool_grpo", "--config", str(config), *resumed, cwd=tmp_path)
    assert status == 0, output
    assert [row["step"] for row in load_rollouts(tmp_path / "out" / "rollouts")][8:] == [2, 2, 2, 2]
    monkeypatch.chdir(tmp_path)
    AutoModelForCausalLM.from_pretrained("out")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [], "reward_funcs": [], "dataset": "nothing.jsonl"}, "dataset: there is no file 'nothing.jsonl' in"),
        ({"tools": ["json:dumps"]}, "tools[0], dumps: "),
        (
            {"reward_funcs": ["recipes.weather_calculator.tasks:needed_calls"]},
            "'needed_calls' asks for needed, which is neither a column",
        ),
        ({"temperature": 0.7, "generation_kwargs": {"temperature": 0.5}}, "generation_kwargs has temperature 0.5, "),
        ({"loss_type": "grpo2"}, "loss_type is 'grpo2', expected one of 'grpo', 'bnpo', "),
        ({"per_device_train_batch_size": 3}, "num_generations"),
        ({"resume_from_checkpoint": True}, "resume_from_checkpoint is True, but 'out' has no checkpoint to go on from"),
        ({"resume_from_checkpoint": "out/checkpoint-9"}, "out/checkpoint-9 cannot be resumed: there is no such folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_status_2_before_any_work(tmp_path, monkeypatch, capsys, fields, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["--config", str(prepare(tmp_path, **fields))]
    with pytest.raises(SystemExit) as exit:
        main(*parse(arguments))
    said = capsys.readouterr().err.splitlines()[-1]
    assert exit.value.code == 2 and said.startswith("tool_grpo: ") and message in said


def test_a_folder_that_is_meant_as_a_model_must_exist():
    with pytest.raises(FileNotFoundError, match="model_name_or_path is 'runs/no/model', but there is no such folder"):
        check_model_path("runs/no/model")
    check_model_path("Qwen/Qwen3-1.7B")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_parses_and_names_what_exists(path):
    script, config, model = parse(["--config", str(path), *([] if "cpu" in path.stem else ["--bf16", "false"])])
    given = yaml.safe_load(path.read_text())
    parsed = vars(script) | vars(model) | vars(config)
    for name in given.keys() - {"bf16", "lr_scheduler_type", "save_strategy", "report_to"}:
        assert parsed[name] == given[name], name
    for name in [*script.tools, *script.reward_funcs]:
        assert not name.startswith("recipes.") or import_path(name, "tools")


def test_an_unknown_field_of_a_config_is_named(tmp_path, capsys):
    config = prepare(tmp_path, max_observation_token=3)
    with pytest.raises(SystemExit, match="2"):
        parse(["--config", str(config)])
    assert "max_observation_token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"question": "a"}\n{"query": "b"}\n', "tasks.jsonl, row 2: found columns .'query'., expected `prompt`"),
        ('{"question": "a"}\n\n{"question": \n', "tasks.jsonl, row 3: not JSON"),
        ("[1]\n", "tasks.jsonl, row 1: found list, expected an object"),
        ("\n", "tasks.jsonl has no rows"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, lines, message):
    script, _, _ = parse(["--config", str(prepare(tmp_path))])
    (tmp_path / "tasks.jsonl").write_text(lines)
    with pytest.raises(ValueError, match=message):
        read_dataset(str(tmp_path / "tasks.jsonl"), script)


def test_messages_stay_as_they_are_and_keep_their_own_system_prompt(tmp_path):
    script, _, _ = parse(["--config", str(prepare(tmp_path))])
    rows = [{"prompt": [{"role": "system", "content": "Mine."}, *user("a")]}, {"prompt": user("b")}]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = read_dataset(str(tmp_path / "tasks.jsonl"), script)
    assert dataset["prompt"][0] == rows[0]["prompt"]
    assert dataset["prompt"][1] == [{"role": "system", "content": "Add."}, *user("b")]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.at_all:tool", "tools: no module 'nowhere' for 'nowhere.at_all:tool' in /"),
        ("tests.nowhere:tool", "tools: no module 'tests.nowhere' for"),
        ("tests.tiny:nothing", "tiny.py has no function or class 'nothing', which 'tests.tiny:nothing' asks for"),
        ("tool", "tools: 'tool' is not an import path; expected `package.module:name`"),
    ],
)
def test_an_import_path_that_leads_nowhere_says_where_it_ends(path, message):
    with pytest.raises(ValueError, match=message):
        import_path(path, "tools")
