"""The notebooks run from the first cell to the last, as a reader would run them, and carry no outputs of their own."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the cells wrote and showed, as one text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(str(output.get("text") or output.get("data")) for output in outputs)


def test_the_notebooks_are_these_and_none_carries_outputs():
    assert {path.stem for path in NOTEBOOKS} >= {
        "01_see_the_mask",
        "02_train_a_tool_agent",
        "03_search_agent",
        "04_mask_ablation",
    }
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")], path.name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "01_see_the_mask",
            [
                "gradient where the environment wrote: 0.0",
                "completion_text  [True, True]",
                "model_text       [True, False]",
                "srcdoc=",  # the view
            ],
        ),
        ("02_train_a_tool_agent", ["audit of the first step", "env_mask/env_token_share", "srcdoc=", "saved rollouts"]),
        (
            "03_search_agent",
            [
                "made up by the model: False",
                "&#60;/information>",
                "answer: no  tags counted: 3",
                "3 calls, 1 batch of 2 queries",
                "Scores(questions=8",
                "srcdoc=",
            ],
        ),
        ("04_mask_ablation", ["held-out success", "rewards of the first step alike: True", "image/png", "'gradient':"]),
    ],
)
def test_a_notebook_runs_and_shows_what_its_text_says(name, shown, monkeypatch, request):
    if name == "04_mask_ablation":
        monkeypatch.setenv("QUICK_CHECKPOINT", str(request.getfixturevalue("quick_checkpoint")))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    text = printed(notebook)
    for expected in shown:
        assert expected in text
