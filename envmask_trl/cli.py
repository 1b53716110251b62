"""`envmask-trl doctor | lint | audit | view`. Knows arguments, paths and exit statuses: the work is done in `inspect`.

Exit status: 0 nothing found, 1 something found, 2 the command could not do what was asked, with one sentence why.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLEAN, FOUND, UNUSABLE = 0, 1, 2
MODEL_HELP = "folder of a model or tokenizer, or its name on the Hub"
TOOLS_HELP = "functions as module:name, or a .json file with a list of JSON schemas"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Example:
        main(["lint", "demonstrations.jsonl"])
    """
    options = make_parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLEAN
    except (ValueError, OSError) as error:
        print(f"envmask-trl {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return UNUSABLE


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="envmask-trl",
        description="See what trains, and whether a template, a data set and a model are safe to train with.",
        epilog="example: envmask-trl lint demonstrations.jsonl",
    )
    parser.add_argument("--version", action="version", version=f"envmask_trl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="doctor | lint | audit | view")

    doctor = add_command(commands, "doctor", run_doctor, "Qwen/Qwen3-0.6B --tools my_tools:weather")
    doctor.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    doctor.add_argument("--template", type=Path, metavar="FILE", help="a chat template in place of the tokenizer's own")
    doctor.add_argument("--tools", nargs="+", default=[], metavar="TOOL", help=TOOLS_HELP)

    lint = add_command(commands, "lint", run_lint, "demonstrations.jsonl --model Qwen/Qwen3-0.6B --max-length 2048")
    lint.add_argument("data", type=Path, metavar="DATA", help="a .jsonl or .parquet file of conversations")
    lint.add_argument("--model", metavar="MODEL", help=f"{MODEL_HELP}; rows are rendered and counted with it")
    lint.add_argument("--max-length", type=int, metavar="TOKENS", help="tokens that a row may have; needs --model")
    lint.add_argument("--tools", nargs="+", metavar="TOOL", help=f"{TOOLS_HELP}; for rows without tools of their own")
    lint.add_argument("--answer-column", default="answer", metavar="NAME", help="column of the right answer")
    lint.add_argument("--ignore", nargs="+", default=[], metavar="KIND", help="kinds of findings to leave out")
    lint.add_argument("--fix", type=Path, metavar="NEW.jsonl", help="write a copy without the nulls that Arrow put in")

    audit = add_command(commands, "audit", run_audit, "runs/agent/rollouts --model runs/agent/model")
    audit.add_argument("rollouts", type=Path, metavar="ROLLOUTS", help="a parquet file, or a folder of them")
    audit.add_argument("--model", required=True, metavar="MODEL", help="folder of the model that made them")
    audit.add_argument("--max-rows", type=int, default=64, metavar="N", help="rollouts that are forwarded (64)")

    view = add_command(commands, "view", run_view, "runs/agent/rollouts --model runs/agent/model -o rollouts.html")
    view.add_argument("rollouts", type=Path, metavar="ROLLOUTS", help="a parquet file, or a folder of them")
    view.add_argument("--model", required=True, metavar="MODEL", help=f"{MODEL_HELP}; its tokenizer made them")
    view.add_argument("-o", "--output", type=Path, default=Path("rollouts.html"), metavar="FILE.html", help="the page")
    view.add_argument("--terminal", action="store_true", help="print the first rollouts instead")
    view.add_argument("--figures", type=Path, metavar="FOLDER", help="also draw one rollout's masks, as two PNGs")
    return parser


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], example: str
) -> argparse.ArgumentParser:
    assert run.__doc__ is not None
    parser = commands.add_parser(
        name, help=run.__doc__, description=run.__doc__, epilog=f"example: envmask-trl {name} {example}"
    )
    parser.set_defaults(run=run)
    return parser


def run_doctor(options: argparse.Namespace) -> int:
    """Do the installed versions fit, and can this tokenizer and chat template be trained with?"""
    from .inspect.versions import installed_versions

    installed = installed_versions()
    print("\n".join(map(str, installed)), flush=True)
    from .inspect.template_check import check_template

    template = None if options.template is None else read_text(options.template)
    verdict = check_template(load_tokenizer(options.model), load_tools(options.tools), chat_template=template)
    return CLEAN if all(each.fits for each in installed) and verdict.trains else FOUND


def run_lint(options: argparse.Namespace) -> int:
    """What is wrong with a data set of conversations?"""
    from .inspect.lint.linter import lint

    report = lint(
        options.data,
        tools=None if options.tools is None else load_tools(options.tools),
        tokenizer=None if options.model is None else load_tokenizer(options.model),
        max_length=options.max_length,
        answer_column=options.answer_column,
        ignore=options.ignore,
        fix=options.fix,
    )
    print(report)
    return report.exit_status


def run_audit(options: argparse.Namespace) -> int:
    """Are the environment's tokens in saved rollouts seen by this model, and not learned?"""
    check_exists(options.rollouts)
    tokenizer = load_tokenizer(options.model)
    from transformers import AutoModelForCausalLM

    from .inspect.audit import audit

    model = AutoModelForCausalLM.from_pretrained(options.model)
    report = audit(options.rollouts, model=model, tokenizer=tokenizer, max_rows=options.max_rows)
    print(report)
    return CLEAN if report.passed else FOUND


def run_view(options: argparse.Namespace) -> int:
    """Show saved rollouts: who wrote each token, and which are trained."""
    if options.figures is not None and find_spec("matplotlib") is None:
        raise ValueError("--figures needs matplotlib; pip install 'envmask_trl[recipes]'")
    check_exists(options.rollouts)
    from .inspect.view import view

    page = view(options.rollouts, tokenizer=load_tokenizer(options.model), title=str(options.rollouts))
    print(page if options.terminal else f"{page.save(options.output)}: {page.summary}")
    if options.figures is not None:
        from .inspect.figures import draw_figures

        print(*draw_figures(page.rollouts, options.figures), sep="\n")
    return CLEAN


def load_tokenizer(path: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{path!r} has no tokenizer that can be loaded ({reason}); expected a {MODEL_HELP}") from error


def load_tools(paths: Sequence[str]) -> list[Any]:
    """Functions and schemas, in order.

    Raises:
        ValueError: a path that names nothing; says what is expected.
    """
    tools: list[Any] = []
    for path in paths:
        if path.endswith(".json"):
            try:
                schemas = json.loads(read_text(Path(path)))
            except json.JSONDecodeError as error:
                raise ValueError(f"--tools {path}: {error}; expected a JSON list of tool schemas") from error
            tools += schemas if isinstance(schemas, list) else [schemas]
        else:
            tools.append(import_tool(path))
    return tools


def import_tool(path: str) -> Any:
    """What `module:name` names; modules of the current folder are found too."""
    module_name, _, name = path.partition(":")
    sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--tools {path}: {error}; expected module:name of a function, or a .json file") from error


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; expected a text file") from error


def check_exists(rollouts: Path) -> None:
    """Before a model is loaded for nothing."""
    if not rollouts.exists():
        raise ValueError(
            f"{rollouts} does not exist; expected what the trainer writes to `rollouts/` of its output_dir"
        )
