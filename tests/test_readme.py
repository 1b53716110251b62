"""The README's Python runs, in order, as one session."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_python_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert 'env       \'{"city": "Oslo", "temperature": 7}' in printed and "answered" in printed
    assert names["correct"](["it is 7"], ["7"], [False]) == [1.0]


def test_files_that_the_readme_names_exist():
    for path in re.findall(r"`((?:tests|recipes)/[\w/.]+\.(?:py|yaml))`", README.read_text()):
        assert (README.parent / path).exists(), path
