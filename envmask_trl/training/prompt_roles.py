"""Does the chat template show every message of a data set's prompts, in a role it knows? Knows Arrow: no trainer.

Contents are shown as texts, see `rollout/message_text.py`, and so is the mark that is looked for here.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
from datasets import Dataset
from jinja2 import TemplateError
from pyarrow import compute
from pyarrow.types import is_large_list, is_large_string, is_list, is_string, is_struct
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..rollout.message_text import with_texts
from ..rollout.response_templates import QUESTION, render

logger = logging.get_logger(__name__)
USUAL = ("system", "user", "assistant", "tool")
MARK = "envmaskMessage"


def check_roles(name: str, dataset: Dataset, tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any]) -> None:
    """Refuse messages that the template leaves out; warn of roles it does not name, and of prompts that end in a turn.

    Example:
        # prompts of [{"role": "human", "content": "a"}] under Qwen3's template, which skips every role it does not know
        check_roles("train_dataset", dataset, tokenizer, {})
        ValueError: train_dataset has in row 0 a message of the role 'human', which the chat template does not show ...

    Raises:
        ValueError: names the data set, the row and the role.
    """
    check_contents(name, dataset)
    columns = list(role_columns(dataset))
    template = kwargs.get("chat_template") or tokenizer.chat_template
    if columns and not template:
        raise ValueError(
            f"the prompts of {name} are messages, but the tokenizer has no chat template to write them with; set "
            "tokenizer.chat_template, or use the tokenizer of an instruct model"
        )
    for role in dict.fromkeys(role for _, roles, _ in columns for role in compute.unique(roles).to_pylist()):
        if role in ("assistant", "tool"):  # which a template may show only behind a question, or a call
            continue
        where = f"{name} has in row {first_row(columns, role)} a message of the role {role!r}"
        problem = why_not_shown(role, lambda messages: render(tokenizer, messages, None, kwargs))
        if problem is not None:
            remedy = "rename it to one that the template knows, such as 'user', or use another template"
            raise ValueError(f"{where}, which the chat template does not show the model{problem}; {remedy}")
        if role not in USUAL and role not in str(template):
            logger.warning(
                f"{where}, which the chat template does not name and writes as it is, so that the model may never have "
                "seen it; rename it to 'user' or 'system' unless that is meant"
            )
    row = first_ending_in_a_turn(columns)
    if row is not None:
        logger.warning(
            f"{name} has in row {row} a prompt that ends in an assistant's message: the template opens a new turn "
            "behind it, and the model does not continue it; end prompts with a user's or a tool's message"
        )


def check_contents(name: str, dataset: Dataset) -> None:
    """Refuse contents in which there is something else than text, with the row."""
    column = dataset.select_columns(["prompt"]).with_format("arrow")[:]["prompt"]
    if not is_messages(column.type) or column.type.value_type.get_field_index("content") < 0:
        return
    kind = column.type.value_type.field("content").type
    if is_string(kind) or is_large_string(kind):
        return
    for row, prompt in enumerate(prompt.as_py() for prompt in column):
        try:
            with_texts(prompt)
        except ValueError as error:
            raise ValueError(f"{name} has in row {row} a prompt that cannot be shown: {error}") from error


def is_messages(kind: Any) -> bool:
    return (is_list(kind) or is_large_list(kind)) and is_struct(kind.value_type)


def role_columns(dataset: Dataset) -> Iterator[tuple[Any, Any, int]]:
    """Of each chunk: where its prompts begin, [rows + 1], the roles of all messages, and its first row's number."""
    column = dataset.select_columns(["prompt"]).with_format("arrow")[:]["prompt"]
    if not is_messages(column.type) or column.type.value_type.get_field_index("role") < 0:
        return
    first = 0
    for chunk in column.chunks:
        used = chunk.values.slice(chunk.offsets[0].as_py(), chunk.offsets[-1].as_py() - chunk.offsets[0].as_py())
        yield compute.subtract(chunk.offsets, chunk.offsets[0]), compute.struct_field(used, "role"), first
        first += len(chunk)


def first_row(columns: list[tuple[Any, Any, int]], role: str | None) -> int:
    for offsets, roles, first in columns:
        is_role = compute.is_null(roles) if role is None else compute.equal(roles, role)
        message = compute.index(is_role, True).as_py()
        if message >= 0:
            return first + compute.sum(compute.less_equal(offsets, message)).as_py() - 1
    raise AssertionError(f"no message has the role {role!r}")


def first_ending_in_a_turn(columns: list[tuple[Any, Any, int]]) -> int | None:
    for offsets, roles, first in columns:
        last = roles.take(compute.subtract(offsets[1:], pyarrow.scalar(1, offsets.type)))
        row = compute.index(compute.equal(last, "assistant"), True).as_py()
        if row >= 0:
            return first + row
    return None


def why_not_shown(role: str | None, shown: Callable[[list[dict[str, Any]]], str]) -> str | None:
    """None if a message of this role is shown anywhere; else what the template raises on one, or ""."""
    message: dict[str, Any] = {"role": role, "content": MARK}
    system = {"role": "system", "content": "Be brief."}
    problem = ""
    for messages in ([message], [message, QUESTION], [QUESTION, message], [system, QUESTION, message]):
        try:
            if MARK in shown(messages):
                return None
        except (TemplateError, TypeError, ValueError) as error:
            problem = f" ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return problem
