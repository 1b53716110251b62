"""What `run_rollouts` is given, checked before a turn is played; the most of it before an environment is made."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from .limits import RolloutLimits
from .turn_block import BlockRenderer


def check_arguments(
    prompts: Any,
    *,
    tools: Any,
    environments: Any,
    rows: Sequence[Mapping[str, Any]] | None,
    limits: Any,
    prompt_ids: Sequence[Sequence[int]] | None,
    parser: Any,
) -> None:
    """Raise ValueError on what no rollout could be made of, and on what would not be read."""
    if isinstance(prompts, (str, Mapping)) or any(isinstance(prompt, Mapping) for prompt in prompts):
        raise ValueError("prompts is a single prompt, expected a list with one prompt per rollout; write [prompt]")
    if callable(tools) or isinstance(tools, str):
        raise ValueError(f"tools is a {type(tools).__name__}, expected a list of functions; write [tool]")
    for index, tool in enumerate(tools or ()):
        if not callable(tool):
            raise ValueError(f"tool {index} is a {type(tool).__name__}, expected a function that can be called")
    if rows is not None and not callable(environments):
        raise ValueError(
            "rows are what new environments are reset with, but environments is no factory; leave rows out, or pass a "
            "class or function that makes an environment"
        )
    if environments is not None and not callable(environments) and not isinstance(environments, Sequence):
        raise ValueError(
            f"environments is one {type(environments).__name__}, which rollouts cannot share; pass its class, or a "
            "list with one instance per rollout"
        )
    if limits is not None and not isinstance(limits, RolloutLimits):
        raise ValueError(f"limits is a {type(limits).__name__}, expected RolloutLimits(...)")
    if parser is not None and not callable(parser):
        raise ValueError(f"parser is a {type(parser).__name__}, expected a function from a turn's text to a ParsedTurn")
    if prompt_ids is None:
        for index, prompt in enumerate(prompts):
            check_prompt(index, prompt)
    else:
        check_prompt_ids(prompts, prompt_ids)


def check_prompt(index: int, prompt: Any) -> None:
    """A prompt is a text, or a list of messages that each have a role."""
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, (list, tuple)) or not prompt:
        found = "an empty list" if isinstance(prompt, (list, tuple)) else f"a {type(prompt).__name__}"
        raise ValueError(f"prompt {index} is {found}, expected a text or a list of at least one message")
    for number, message in enumerate(prompt):
        if isinstance(message, (str, type(None))) or (isinstance(message, Mapping) and "role" not in message):
            fault = "has no role" if isinstance(message, Mapping) else f"is a {type(message).__name__}"
            raise ValueError(
                f"prompt {index}: message {number} {fault}, expected a dict such as "
                "{'role': 'user', 'content': '...'}"
            )


def check_prompt_ids(prompts: Sequence[Any], prompt_ids: Sequence[Sequence[int]]) -> None:
    if len(prompt_ids) != len(prompts):
        raise ValueError(
            f"prompt_ids has {len(prompt_ids)} entries but there are {len(prompts)} prompts; give one for each"
        )
    empty = [index for index, ids in enumerate(prompt_ids) if ids is None or not len(ids)]
    if empty:
        raise ValueError(f"prompt_ids of prompt {empty[0]} is empty, expected at least one token")


def known_stop_ids(given: Collection[int] | None, sampler: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a turn: those given, else those the sampler stops at, else the tokenizer's eos.

    One set decides where a turn ends, what closes it and what is no content; a model may stop at more ids than eos.
    """
    if not callable(getattr(sampler, "sample", None)):
        raise ValueError(
            f"sampler is a {type(sampler).__name__}, expected an object with a method `sample`, such as "
            "KeptCacheSampler(model, tokenizer)"
        )
    if given is not None and (isinstance(given, (int, str)) or None in given):
        raise ValueError(f"stop_token_ids is {given!r}, expected a collection of token ids such as {{2}}")
    found = given if given is not None else getattr(sampler, "stop_ids", None) or {tokenizer.eos_token_id} - {None}
    return frozenset(found)


def check_turns_end(given: Collection[int] | None, stop_ids: Collection[int]) -> None:
    """Raise where no id ends a turn, and it was not asked for."""
    if given is None and not stop_ids:
        raise ValueError("the tokenizer has no eos token, which ends a turn; set tokenizer.eos_token or stop_token_ids")


def check_encoder(encoder: Any, tools: Sequence[Callable[..., Any]] | None, template_kwargs: Mapping[str, Any]) -> None:
    """Raise where observations would be written under another template than the prompts: other arguments or tools.

    An encoder without tools of its own is not asked about them.
    """
    renderer = getattr(encoder, "renderer", None)
    if not isinstance(renderer, BlockRenderer):
        return
    if renderer.template_kwargs != dict(template_kwargs):
        raise ValueError(
            f"the encoder has template_kwargs={renderer.template_kwargs}, the prompts {dict(template_kwargs)}; "
            "give both the same"
        )
    known = {tool.__name__ for tool in renderer.tools or () if hasattr(tool, "__name__")}
    shown = {tool.__name__ for tool in tools or ()}
    if known and known != shown:
        raise ValueError(f"the encoder has the tools {sorted(known)}, the rollouts {sorted(shown)}; give both the same")


def check_samples(samples: Sequence[Any], contexts: Sequence[Any]) -> None:
    """Raise unless the sampler gave one sample per context: a missing one would shift all that follow."""
    if not isinstance(samples, Sequence):
        raise ValueError(
            f"the sampler returned a {type(samples).__name__}, expected a list with one sample per context"
        )
    if len(samples) != len(contexts):
        raise ValueError(f"the sampler returned {len(samples)} samples for {len(contexts)} contexts, expected one each")


def check_parser_has_use(parser: Callable | None, encoder: object | None, *, any_prompt: bool) -> None:
    """A call that is read where nothing can be called could be neither run nor answered."""
    if parser is not None and encoder is None and any_prompt:
        raise ValueError("parser reads calls, but no rollout has a tool to call; pass tools, or leave parser out")
