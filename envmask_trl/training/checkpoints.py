"""Which checkpoint a run goes on from. Knows the files of a checkpoint: no trainer, no rollouts.

runs/agent/checkpoint-100/    model.safetensors  optimizer.pt  ..  trainer_state.json     <- the run goes on from here
runs/agent/checkpoint-200/    model.safetensors                                           killed while it was saved
"""

import json
import zipfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.utils import logging

STATE = "trainer_state.json"  # the last file of a checkpoint that transformers writes

logger = logging.get_logger(__name__)


def checkpoint_to_resume(resume: Any, output_dir: str | None, *, has_adapter: bool | None = None) -> str | None:
    """The folder to go on from, or None to start anew.

    Args:
        resume: True for the last checkpoint in `output_dir` that was saved to its end, a checkpoint's folder, or
            None or False.
        has_adapter: whether an adapter of PEFT is trained; None if that is not known.

    Raises:
        ValueError: there is no such checkpoint, the one that is named was not saved to its end, or it has an adapter
            where a whole model is trained, or the other way round.

    Example:
        checkpoint_to_resume(True, "runs/agent")                         # "runs/agent/checkpoint-100"
        checkpoint_to_resume("runs/agent/checkpoint-200", "runs/agent")
        ValueError: runs/agent/checkpoint-200 cannot be resumed: trainer_state.json is missing, ...
    """
    if not resume:
        return None
    if resume is True:
        resume = last_whole(str(output_dir))
    elif problem := fault_of(Path(resume)):
        raise ValueError(f"{resume} cannot be resumed: {problem}; choose another checkpoint")
    if has_adapter is not None:
        check_kind(str(resume), has_adapter=has_adapter)
    return str(resume)


def last_whole(output_dir: str) -> str:
    folders = checkpoints(Path(output_dir))
    for folder in reversed(folders):
        problem = fault_of(folder)
        if problem is None:
            return str(folder)
        logger.warning(f"{folder} is passed over: {problem}")
    found = f"only {len(folders)} that were not saved to their end" if folders else "none"
    raise ValueError(
        f"resume_from_checkpoint is True, but {output_dir!r} has no checkpoint to go on from, found {found}; "
        "leave it out to start anew"
    )


def check_kind(folder: str, *, has_adapter: bool) -> None:
    """Raise ValueError where whole weights would go into an adapter or the other way round: none would be loaded.

    Args:
        has_adapter: whether the model that is trained is a PEFT model.
    """
    adapter = (Path(folder) / "adapter_config.json").is_file()
    whole = any(Path(folder).glob("model*.safetensors*"))
    if has_adapter and whole and not adapter:
        raise ValueError(f"{folder} has a whole model, but an adapter is trained; leave peft_config out, or start anew")
    if adapter and not whole and not has_adapter:
        raise ValueError(f"{folder} has an adapter, but a whole model is trained; pass its peft_config, or start anew")


def checkpoints(output_dir: Path) -> list[Path]:
    """`checkpoint-9`, `checkpoint-10`, ... in the order of their steps."""
    folders = [path for path in output_dir.glob("checkpoint-*") if path.is_dir()]
    steps = {path: path.name.removeprefix("checkpoint-") for path in folders}
    return sorted((path for path in folders if steps[path].isdecimal()), key=lambda path: int(steps[path]))


def fault_of(folder: Path) -> str | None:
    """Why a checkpoint cannot be loaded, in words, or None; no tensor is read."""
    if not folder.is_dir():
        return "there is no such folder"
    if not (folder / STATE).is_file():
        return f"{STATE} is missing, which is written last, so saving was interrupted"
    try:
        json.loads((folder / STATE).read_text(encoding="utf-8"))
    except ValueError:
        return f"{STATE} is not whole"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError:
            return f"{path.name} is not whole"
    broken = [path.name for path in sorted(folder.glob("*.pt")) if not zipfile.is_zipfile(path)]
    return f"{broken[0]} is not whole" if broken else None
