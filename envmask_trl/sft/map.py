"""Demonstrations as rows for `trl.SFTTrainer`. Knows columns: what a row's parts are is read elsewhere."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..rollout.arguments import check_turns_end
from ..trajectory import Source
from .conversations import ConversationReader, Tools
from .parts import IGNORED, Part, PartWeights, Reason, RowProblem
from .report import MaskReport, TooManyDropped
from .tag_format import TagFormat, tag_format
from .tagged_text import Encoding, TaggedTextReader

Columns = dict[str, list[Any]]
REPORTED = ("problem", "is_cut", "num_observations", "num_tokens", "num_trained")
WEIGHT_COLUMN = "loss_weights"
FORMS = "`messages`, `text`, `prompt` and `completion`, or, with encoding='whole', `input_ids`"


def mask_observations(
    batch: Mapping[str, Sequence[Any]],
    *,
    tokenizer: PreTrainedTokenizerBase,
    tools: Tools | None = None,
    tags: str | tuple[str, str] | TagFormat | None = None,
    encoding: Encoding = "pieces",
    weights: PartWeights | None = None,
    max_length: int | None = None,
    stop_token_ids: Collection[int] | None = None,
    template_kwargs: dict[str, Any] | None = None,
    keep_problems: bool = False,
) -> Columns:
    """Encode demonstrations of agents; only what the model wrote has labels. A batched `datasets.map` function.

        ids      P P P   c c E   n t t n h   a a E
        labels   . . .   c c E   . . . . .   a a E        . = -100

    Use, and pass the result to `trl.SFTTrainer` as it is (`mask_dataset` does this, drops bad rows and reports them):
        dataset.map(mask_observations, batched=True, remove_columns=dataset.column_names,
                    fn_kwargs={"tokenizer": tokenizer, "tools": [weather]})

    Args:
        batch: without `tags`, column `messages`: system and user messages, then assistant and tool messages in turn. An
            assistant message may carry `tool_calls`, or be written out as text in `content`, broken calls included;
            with `weight: 0`, `train: false` or `loss: false` it stays visible and is not learned. Contents are texts
            or blocks of text. A column `tools` (JSON text or lists) gives each row its own.
            With `tags`, columns `prompt` (text or messages, never learned) and `completion`, or `text` alone, which is
            learned, observations aside, from its first tag on (all of it with encoding="whole"); optionally
            `observations`, lists of their contents.
        tokenizer: a fast tokenizer; conversations need its chat template.
        tools: functions, or their JSON schemas, that the prompt shows to the model.
        tags: a pair of tags around observations, a `TagFormat`, or "react", "thought_action", "search_r1".
        encoding: of tagged text. "pieces" tokenises each turn and observation alone, as a rollout does; "whole" the
            text in one go, or takes ids as they are, and drops rows in which a token spans a boundary.
        weights: what thoughts, calls and answers weigh; by default all 1.
        max_length: rows are cut behind as many tokens.
        stop_token_ids: of conversations, every id that may end a turn; by default the tokenizer's eos.
        template_kwargs: as for `apply_chat_template`.
        keep_problems: report a row that cannot be masked in column `problem`, with empty ids, instead of raising.

    Returns:
        `input_ids` and `labels`, lists of equal length per row; `loss_weights` where weights are fractions; with
        `keep_problems` also `problem` ("" or "reason: sentence") and the counts that `MaskReport` sums up.

    Raises:
        ValueError: a row cannot be masked (the error names it), or the columns are none of these.
    """
    check_max_length(max_length)
    weights = checked_weights(weights, encoding=encoding, tagged=tags is not None)
    kwargs = dict(template_kwargs or {})
    reader: ConversationReader | TaggedTextReader
    if tags is None:
        stop_ids = {tokenizer.eos_token_id} - {None} if stop_token_ids is None else set(stop_token_ids)
        check_turns_end(stop_token_ids, stop_ids)
        reader = ConversationReader(tokenizer, stop_token_ids=stop_ids, template_kwargs=kwargs, by_kind=weights.by_part)
    else:
        reader = TaggedTextReader(
            tokenizer, tag_format(tags), encoding=encoding, template_kwargs=kwargs, by_kind=weights.by_part
        )
    columns: Columns = {"input_ids": [], "labels": []}
    columns |= {WEIGHT_COLUMN: []} if weights.fractional else {}
    columns |= {name: [] for name in REPORTED} if keep_problems else {}
    for index, arguments in enumerate(rows_of(batch, tools=tools, tagged=tags is not None)):
        try:
            row = columns_of(reader.parts(*arguments), weights, max_length)
        except RowProblem as problem:
            if not keep_problems:
                raise ValueError(f"row {index}: {problem.detail}") from problem
            row = dict.fromkeys(columns, 0) | {"input_ids": [], "labels": [], WEIGHT_COLUMN: []}
            row |= {"problem": str(problem), "is_cut": False}
        for name, values in columns.items():
            values.append(row[name])
    return columns


def check_max_length(max_length: int | None) -> None:
    if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
        raise ValueError(f"max_length is {max_length!r}, expected a number of tokens, at least 1, or None")


def checked_weights(weights: PartWeights | None, *, encoding: Encoding, tagged: bool) -> PartWeights:
    """The weights, all 1 by default; they and `encoding` must go together."""
    if not isinstance(weights, PartWeights | None):
        raise ValueError(f"weights is {weights!r}, expected PartWeights(...)")
    weights = weights or PartWeights()
    if encoding != "pieces" and (weights.by_part or not tagged):
        raise ValueError(
            "encoding='whole' knows no parts and no messages; use encoding='pieces' with weights or without tags"
        )
    return weights


def rows_of(batch: Mapping[str, Sequence[Any]], *, tools: Tools | None, tagged: bool) -> list[tuple]:
    """The arguments of the reader, one tuple a row.

    Raises:
        ValueError: the columns are none that are known.
    """
    if not tagged and "messages" in batch:
        rows = len(batch["messages"])
        own = (batch.get("tools") if tools is None else None) or [None] * rows
        return list(zip(batch["messages"], [tools or ()] * rows, own, strict=True))
    texts = next((batch[name] for name in ("completion", "text", "input_ids") if name in batch), None)
    if not tagged or texts is None or ("completion" in batch and "prompt" not in batch):
        wanted = FORMS if tagged else "`messages`, or `tags` for tagged text"
        raise ValueError(f"the columns are {sorted(batch)}, expected {wanted}")
    prompts = batch.get("prompt") or [None] * len(texts)
    observations = batch.get("observations") or [None] * len(texts)
    return list(zip(prompts, texts, observations, strict=True))


def columns_of(parts: Sequence[Part], weights: PartWeights, max_length: int | None) -> dict[str, Any]:
    """One row's columns, cut to `max_length` tokens.

    Raises:
        RowProblem: no token that is learned is left.
    """
    whole = [token for part in parts for token in part.token_ids]
    ids, each = whole[:max_length], weights.spread(parts)
    if not any(each):
        raise RowProblem(Reason.NOTHING_TRAINED, f"none of the row's {len(whole)} tokens is learned")
    first = next(place for place, weight in enumerate(each) if weight)
    if first >= len(ids):
        raise RowProblem(
            Reason.CUT, f"the first token that is learned is number {first + 1}, max_length is {max_length}"
        )
    labels = [token if weight else IGNORED for token, weight in zip(ids, each, strict=False)]
    return {
        "input_ids": ids,
        "labels": labels,
        WEIGHT_COLUMN: each[: len(ids)],
        "problem": "",
        "is_cut": len(ids) < len(whole),
        "num_observations": observed(parts),
        "num_tokens": len(ids),
        "num_trained": sum(label != IGNORED for label in labels),
    }


def observed(parts: Sequence[Part]) -> int:
    """How many observations stand between the model's turns; a user's message is none."""
    runs = groupby(parts, key=lambda part: part.source is Source.MODEL)
    return sum(any(part.source is Source.ENV for part in run) for is_model, run in runs if not is_model)


def check_dataset(dataset: Any, *, max_drop_rate: float, source_column: str | None) -> None:
    """Raise on what `mask_dataset` could not count: its arguments, and a data set without rows."""
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"found {type(dataset).__name__}, expected a datasets.Dataset that can be counted before training"
        )
    if not isinstance(max_drop_rate, int | float) or not 0 <= max_drop_rate <= 1:
        raise ValueError(f"max_drop_rate is {max_drop_rate!r}, expected a share from 0 to 1")
    if not len(dataset):
        MaskReport().check(max_drop_rate)
    if source_column is not None and source_column not in dataset.column_names:
        raise ValueError(f"source_column is {source_column!r}, the columns are {dataset.column_names}")


def mask_dataset(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_drop_rate: float = 0.02,
    source_column: str | None = None,
    num_proc: int | None = None,
    **options: Any,
) -> tuple[Dataset, MaskReport]:
    """Mask a data set once, drop the rows that cannot be masked, and say how many, why and from which source.

    Example:
        rows, report = mask_dataset(load_dataset("json", data_files="react.jsonl")["train"], tokenizer, tags="react")
        print(report)
        SFTTrainer(model, SFTConfig(...), train_dataset=rows, processing_class=tokenizer).train()

    Args:
        dataset: as for `mask_observations`.
        tokenizer: a fast tokenizer.
        max_drop_rate: the largest share of rows that may be dropped.
        source_column: names where each row came from; it is kept.
        num_proc: processes of `datasets.map`.
        options: those of `mask_observations`.

    Returns:
        The rows that are kept, with `input_ids` and `labels` (and `loss_weights`), in order; and the report.

    Raises:
        TooManyDropped: more rows were dropped than `max_drop_rate` allows, or all, or no row has an observation in the
            format of `tags`, so the data must be in another one; its `report` says which.
        ValueError: not a `datasets.Dataset`, or no such `source_column`.
    """
    check_dataset(dataset, max_drop_rate=max_drop_rate, source_column=source_column)
    mapped = dataset.map(
        mask_observations,
        batched=True,
        num_proc=num_proc,
        remove_columns=[name for name in dataset.column_names if name != source_column],
        fn_kwargs={"tokenizer": tokenizer, "keep_problems": True, **options},
        desc="Masking observations",
    )
    counts = mapped.select_columns([*REPORTED, *([source_column] if source_column else [])])
    report = MaskReport.of({**row, "source": str(row.get(source_column, "the data set"))} for row in counts)
    report.check(max_drop_rate)
    if options.get("tags") is not None and report.without_observation == report.kept:
        raise TooManyDropped(
            f"none of {report.kept} rows has an observation between {tag_format(options['tags']).observation}; "
            "expected some, so `tags` must name another format",
            report,
        )
    kept = [index for index, problem in enumerate(counts["problem"]) if not problem]
    return mapped.select(kept).remove_columns(list(REPORTED)), report
