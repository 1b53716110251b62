"""The Python of docs/tools.md prints what it says, and the table shows the words that the model is told."""

import re
from pathlib import Path

from envmask_trl import CallStatus, ToolCall
from envmask_trl.rollout.tool_values import describe_error, find_refusal

PAGE = (Path(__file__).parent.parent / "docs" / "tools.md").read_text()


def weather(city: str) -> str:
    return city


def test_the_python_of_the_page_prints_what_it_says(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    exec(compile(block, "docs/tools.md", "exec"), {})
    (promised,) = re.findall(r"print\(.*\)  # (.*)$", block, flags=re.M)
    assert capsys.readouterr().out.strip() == promised


def test_the_table_shows_what_the_model_is_told_and_every_status():
    told = [
        describe_error(ValueError("no such city")),
        *(find_refusal(ToolCall("0", *call), {"weather": weather})[1] for call in (("ghost", {}), ("weather", {}))),
    ]
    assert all(f"`{sentence}`" in PAGE for sentence in told)
    assert {*re.findall(r"\| `(\w+)` \|$", PAGE, flags=re.M)} - {"status"} == {*CallStatus}
