"""The house: imports run one way, private TRL names stand in one file, files and functions stay short."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

import envmask_trl

PACKAGE = Path(envmask_trl.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = {  # a module may import from its own layer and from lower ones
    "trajectory": 0,
    "masks": 1,
    "packing": 1,
    "rollout": 2,
    "rewards": 2,
    "sft": 3,
    "inspect": 3,
    "training": 4,
    "cli": 5,
}
TRL_PRIVATE_HOMES = {"training/_trl.py", "training/_trl_environments.py"}


def layer_of(parts: tuple[str, ...]) -> int:
    return LAYERS[parts[0].removesuffix(".py")]


def imported_modules(path: Path) -> list[tuple[str, ...]]:
    """The package's own modules that a file imports, as parts below the package."""
    here = path.relative_to(PACKAGE).parts
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level]
            parts = (*base, *(node.module.split(".") if node.module else ()))
            found += [parts or (alias.name,) for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envmask_trl"):
            found.append(tuple(node.module.split(".")[1:]))
    return found


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.name != "__init__.py"], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_run_one_way(path):
    own = layer_of(path.relative_to(PACKAGE).parts)
    for parts in imported_modules(path):
        assert layer_of(parts) <= own, f"{path.name} imports {'.'.join(parts)}, which is above it"


def test_the_layers_name_every_module():
    assert {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES} - {"__init__"} == set(LAYERS)


def test_private_names_of_trl_stand_in_two_files():
    from trl import GRPOTrainer

    own = re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(GRPOTrainer))  # attributes of instances too
    private = {name for name in (*dir(GRPOTrainer), *own) if name.startswith("_") and not name.startswith("__")}
    private -= set(dir(object))
    for path in FILES:
        if str(path.relative_to(PACKAGE)) in TRL_PRIVATE_HOMES:
            continue
        tree = ast.parse(path.read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & private
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)} & private
        assert not used | (defined & {"_generate", "_prepare_inputs", "_calculate_rewards"}), (
            f"{path}: {used | defined}"
        )


def test_the_private_field_of_the_attention_implementation_is_read_in_one_file():
    reading = {str(path.relative_to(PACKAGE)) for path in FILES if "_attn_implementation" in path.read_text()}
    assert reading == {"training/_trl.py"}


def test_files_and_functions_stay_short():
    lengths = [len(path.read_text().splitlines()) for path in FILES if path.name != "__init__.py"]
    functions = [
        node.end_lineno - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert median(lengths) <= 200 and max(lengths) <= 300
    assert sorted(functions)[int(0.9 * len(functions))] <= 40


def test_importing_the_package_imports_neither_torch_nor_trl():
    code = "import sys, envmask_trl; assert not {'torch', 'trl', 'transformers'} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names_are_these_and_each_of_them_loads():
    assert envmask_trl.__all__ == [
        "AuditFailed",
        "AuditReport",
        "BM25Retriever",
        "BatchedTool",
        "CallStatus",
        "Context",
        "DenseRetriever",
        "Document",
        "EnvMaskGRPOConfig",
        "EnvMaskGRPOTrainer",
        "HTTPRetriever",
        "HeldOutWatch",
        "Judge",
        "KeptCacheSampler",
        "LintReport",
        "MaskReport",
        "Objective",
        "ObservationEncoder",
        "OverlappingSampler",
        "ParsedTurn",
        "PartWeights",
        "ProgressLine",
        "Retriever",
        "Reward",
        "Rollout",
        "RolloutAborted",
        "RolloutContext",
        "RolloutLimits",
        "Sample",
        "Sampler",
        "ScriptedSampler",
        "SearchTool",
        "Segment",
        "Source",
        "StopReason",
        "TagFormat",
        "TagProtocol",
        "TemplateParser",
        "TemplateVerdict",
        "TooManyDropped",
        "ToolCall",
        "ToolResult",
        "ToolRunner",
        "Trajectory",
        "TransformersSampler",
        "TurnReward",
        "WeightedSFTTrainer",
        "audit",
        "bounded",
        "check_packing",
        "check_template",
        "checkpoint_to_resume",
        "completion_mask_from_env_mask",
        "compose",
        "hacking",
        "lint",
        "load_rollouts",
        "mask_dataset",
        "mask_observations",
        "pack_rollouts",
        "register_special_tokens",
        "rules",
        "run_rollouts",
        "save_rollouts",
        "view",
    ]
    for name in envmask_trl.__all__:
        assert getattr(envmask_trl, name).__doc__, f"{name} has no docstring"


def test_an_unknown_name_is_answered_with_the_names_there_are():
    with pytest.raises(AttributeError, match="envmask_trl has no 'Trainer'; public names: AuditFailed, "):
        envmask_trl.Trainer  # noqa: B018


def test_recipes_use_public_names_only():
    for path in (PACKAGE.parent / "recipes").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envmask_trl"):
                assert node.module == "envmask_trl", f"{path}: from {node.module}"
                assert {alias.name for alias in node.names} <= set(envmask_trl.__all__), path
