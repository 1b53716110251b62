"""The commands as a user types them: what they print, what they write, and what they exit with."""

import json
import subprocess
import sys

import pyarrow
import pytest
from packaging.requirements import Requirement
from pyarrow import parquet

from envmask_trl import ScriptedSampler, run_rollouts, save_rollouts
from envmask_trl.cli import load_tools, main
from envmask_trl.inspect.versions import InstalledVersion, installed_versions
from tests.data.conversations import CLEAN, calls, result, row, says, tool, user
from tests.tiny import add, answer, call, tiny_model, tiny_tokenizer

COMMANDS = ["doctor", "lint", "audit", "view"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    tiny_model(tokenizer).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    tokenizer = tiny_tokenizer()
    turns = [tokenizer(text)["input_ids"] for text in (call("add", a=1, b=2), answer("3"))]
    script = ScriptedSampler([turns, turns])
    rows = run_rollouts([[user("1+2?")], [user("2+1?")]], tokenizer=tokenizer, sampler=script, tools=[add])
    path = tmp_path_factory.mktemp("run") / "rollouts" / "step-000001.parquet"
    return save_rollouts(rows, path)


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_shows_an_example_that_its_parser_takes(command, capsys):
    from envmask_trl.cli import make_parser

    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    words = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # argparse breaks lines at hyphens
    assert leaving.value.code == 0 and f"example: envmask-trl {command} " in words
    example = words.split("example: envmask-trl ")[1].split()
    assert make_parser().parse_args(example).command == command


def test_the_help_imports_nothing_heavy():
    code = (
        "import sys; from envmask_trl.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as leaving: assert leaving.code == 0\n"
        "assert not {'torch', 'transformers', 'trl', 'datasets', 'pyarrow', 'numpy'} & set(sys.modules), sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["lint"], ["dance"], ["lint", "a.jsonl", "--max-length", "long"], ["view"]])
def test_arguments_that_do_not_parse_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2 and "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("lint none.jsonl", "none.jsonl does not exist; expected a .jsonl or .parquet file"),
        ("lint rows.jsonl --ignore ghosts", "ignore has 'ghosts', which is no kind of finding; expected any of broken"),
        ("lint rows.jsonl --max-length 9", "max_length is 9; expected a positive number of tokens, and a tokenizer"),
        ("lint rows.jsonl --tools none:x", "--tools none:x: No module named 'none'; expected module:name"),
        ("lint rows.jsonl --tools json:x", "--tools json:x: module 'json' has no attribute 'x'; expected module:name"),
        ("lint rows.jsonl --tools weather", "--tools weather: No module named 'weather'; expected module:name"),
        ("lint rows.jsonl --tools rows.jsonl.json", "rows.jsonl.json cannot be read: No such file or directory"),
        ("lint rows.jsonl --fix rows.jsonl", "rows.jsonl, which is the data set itself; give the path of a new file"),
        ("lint rows.parquet", "rows.parquet is not a parquet file"),
        ("view none.parquet --model .", "none.parquet does not exist; expected what the trainer writes"),
        ("audit none --model .", "none does not exist; expected what the trainer writes"),
        ("lint rows.jsonl --model .", "'.' has no tokenizer that can be loaded"),
        ("doctor .", "'.' has no tokenizer that can be loaded"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence_with_status_2(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", CLEAN)
    write_rows(tmp_path / "rows.parquet", CLEAN)
    assert main(arguments.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"envmask-trl {arguments.split()[0]}: ") and sentence in said and said.count("\n") == 1


def test_lint_exits_with_0_when_nothing_is_found_and_with_1_otherwise(tmp_path, capsys):
    clean, faulty = (tmp_path / name for name in ("clean.jsonl", "faulty.jsonl"))
    assert main(["lint", write_rows(clean, CLEAN)]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main(["lint", write_rows(faulty, CLEAN, row(user("q"), calls("weather"), says("7")))]) == 1
    assert "line 2: message 1 has 1 calls" in capsys.readouterr().out
    assert main(["lint", str(faulty), "--ignore", "missing-tool-turn"]) == 0


def test_lint_takes_tools_from_a_module_and_from_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools_of_a_test.py").write_text(
        'def weather(city: str) -> str:\n    """W.\n\n    Args:\n        city: c\n    """\n    return city\n'
    )
    (tmp_path / "tools.json").write_text(json.dumps([tool("calculator")]))
    rows = [row(user(name), calls(name, arguments=arguments), result("7"), says("7")) for name, arguments in USES]
    data = write_rows(tmp_path / "rows.jsonl", *rows)
    assert main(["lint", data, "--tools", "tools_of_a_test:weather", "tools.json"]) == 1
    out = capsys.readouterr().out
    assert "unknown-tool                     1" in out and "line 3: a call of 'ghost'" in out and "1 finding\n" in out
    assert [tool["function"]["name"] for tool in load_tools(["tools.json"])] == ["calculator"]


USES = [("weather", {"city": "Oslo"}), ("calculator", {}), ("ghost", {})]


def test_lint_counts_with_the_tokenizer_of_a_folder_and_repairs_a_copy(tmp_path, model_folder, capsys):
    padded = row({**user("q" * 50), "name": None}, says("a"))
    data, copy = write_rows(tmp_path / "rows.jsonl", padded), tmp_path / "copy.jsonl"
    assert main(["lint", data, "--model", model_folder, "--max-length", "20", "--fix", str(copy)]) == 1
    out = capsys.readouterr().out
    assert "null-padding" in out and "nothing of it would be trained" in out and f"{copy}: written, 1 rows" in out
    assert json.loads(copy.read_text()) == row(user("q" * 50), says("a"))


def test_doctor_says_what_is_installed_and_whether_the_template_trains(model_folder, tmp_path, capsys):
    assert main(["doctor", model_folder, "--tools", "tests.tiny:add"]) == 0
    out = capsys.readouterr().out
    assert "trl           1.16" in out and "chat template: trains" in out
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('never') }}")
    assert main(["doctor", model_folder, "--template", str(template)]) == 1
    assert "NOT OK" in capsys.readouterr().out
    assert main(["doctor", model_folder, "--tools", "tests.test_template_turns:undocumented"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("envmask-trl doctor: tools: undocumented cannot be shown") and said.count("\n") == 1


def test_a_version_that_does_not_fit_is_told_with_the_command_that_helps():
    old = InstalledVersion(Requirement("trl>=1.16,<1.17"), "1.15.0")
    assert not old.fits and 'NOT OK: pip install "trl<1.17,>=1.16"' in str(old)
    assert not InstalledVersion(Requirement("trl"), None).fits
    assert InstalledVersion(Requirement("torch>=2.8"), "2.13.0+cpu").fits
    assert {each.requirement.name for each in installed_versions()} >= {"trl", "torch", "transformers"}
    assert all(each.fits for each in installed_versions())


def test_audit_passes_clean_rollouts_and_finds_an_environment_token_that_trains(
    rollouts, model_folder, tmp_path, capsys
):
    assert main(["audit", str(rollouts), "--model", model_folder]) == 0
    assert "FAULT" not in capsys.readouterr().out
    rows = parquet.read_table(rollouts).to_pylist()
    rows[0]["env_mask"] = [1] * len(rows[0]["env_mask"])
    planted = tmp_path / "planted.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), planted)
    assert main(["audit", str(planted), "--model", model_folder, "--max-rows", "1"]) == 1
    assert "FAULT" in capsys.readouterr().out


def test_view_writes_a_page_or_prints_the_tokens(rollouts, model_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["view", str(rollouts.parent), "--model", model_folder]) == 0
    assert "rollouts.html: 2 rollouts" in capsys.readouterr().out
    assert str(rollouts.parent) in (tmp_path / "rollouts.html").read_text()
    assert main(["view", str(rollouts), "--model", model_folder, "-o", "pages/one.html"]) == 0
    assert (tmp_path / "pages" / "one.html").is_file()
    capsys.readouterr()
    assert main(["view", str(rollouts), "--model", model_folder, "--terminal", "--figures", "figures"]) == 0
    assert "<tool_call>" in (printed := capsys.readouterr().out) and "figures/training_path.png" in printed
    assert (tmp_path / "figures" / "sequence.png").read_bytes().startswith(b"\x89PNG")


def test_figures_without_matplotlib_are_told_before_the_page_is_written(rollouts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("envmask_trl.cli.find_spec", lambda name: None)
    assert main(["view", str(rollouts), "--model", "none", "--figures", "figures"]) == 2
    assert "--figures needs matplotlib; pip install 'envmask_trl[recipes]'" in capsys.readouterr().err
    assert list(tmp_path.glob("*.html")) == []


def test_a_reader_that_closes_the_pipe_early_sees_no_traceback(tmp_path):
    rows = [row(user(str(number)), calls("a"), says("7")) for number in range(3)]
    data = write_rows(tmp_path / "rows.jsonl", *rows)
    code = "import sys; from envmask_trl.cli import main; sys.stdin.read(); sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "lint", data],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()
