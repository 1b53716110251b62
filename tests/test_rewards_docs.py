"""The Python of docs/rewards.md runs, in order, as one program, and prints what it says."""

import re
from pathlib import Path

from envmask_trl import hacking, rules

PAGE = (Path(__file__).parent.parent / "docs" / "rewards.md").read_text()


def test_the_python_of_the_page_runs_and_prints_what_it_says(capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec(compile(block, "docs/rewards.md", "exec"), names)
        promised = re.findall(r"print\(.*\) +# (.*)$", block, flags=re.M)
        printed = capsys.readouterr().out.splitlines()
        assert len(promised) == len(printed) > 0 or not promised
        for found, expected in zip(printed, promised, strict=True):
            assert found.startswith(expected.split(": a list")[0].removesuffix("...")), (found, expected)


def test_the_page_names_every_rule_and_every_detector():
    for name in {*rules.__all__} - {"in_tag"} | {detector.__name__ for detector, _ in hacking.detectors()}:
        assert f"| `{name}(" in PAGE, name
