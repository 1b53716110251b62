"""Rollouts from their prompts to their trajectories. Knows token ids, text and tools: no tensors, no trainer.

Each round: sample all live rollouts, parse, run all calls of all rollouts at once, append the observations, drop the
rollouts that stopped: see `turn_loop.py`. A sampler that can does not wait for slow tools: see `waves.py`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from ..trajectory import StopReason, Trajectory
from .arguments import check_arguments, check_encoder, check_parser_has_use, check_turns_end, known_stop_ids
from .content_guard import ContentGuard
from .environments import tools_by_name
from .episodes import Environments, Episode, all_tools, encode_prompt, open_episodes
from .limits import RolloutLimits
from .model_and_tokenizer import check_tokenizer
from .observations import ObservationEncoder
from .samplers import OverlappingSampler, Sampler, as_tuple
from .search.tag_protocol import TagProtocol
from .state import RolloutState
from .tool_calls import TemplateParser, TurnParser
from .tool_context import RolloutContext, bind_contexts, takes_context
from .tool_flight import ToolFlight
from .tools import ToolRunner
from .turn_loop import Phase, TurnLoop
from .waves import Waves

BESIDE_A_PROTOCOL = "a protocol calls a tool of its own; leave out tools, row_tools and environments"


def run_rollouts(
    prompts: Sequence[Any],
    *,
    tokenizer: PreTrainedTokenizerBase,
    sampler: Sampler,
    tools: Sequence[Callable[..., Any]] | None = None,
    row_tools: Sequence[Sequence[Callable[..., Any]]] | None = None,
    environments: Environments = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    limits: RolloutLimits | None = None,
    prompt_ids: Sequence[Sequence[int]] | None = None,
    parser: TurnParser | None = None,
    encoder: ObservationEncoder | None = None,
    protocol: TagProtocol | None = None,
    tool_runner: ToolRunner | None = None,
    stop_token_ids: Collection[int] | None = None,
    template_kwargs: dict[str, Any] | None = None,
    any_live: Callable[[int], bool] = bool,
    phase: Phase = nullcontext,
) -> list[Trajectory]:
    """Let the model and its tools take turns until every rollout stopped; one trajectory per prompt, in order.

    Example:
        sampler = TransformersSampler(model, tokenizer)
        run_rollouts([[{"role": "user", "content": "6 * 7?"}]], tokenizer=tokenizer, sampler=sampler, tools=[multiply])

    Args:
        prompts: message lists, or texts (which are encoded as they are, and take no tools).
        tokenizer: a fast tokenizer; with tools, it needs a chat template.
        sampler: see `Sampler`, and `OverlappingSampler` for one that goes on while tools are at work.
        tools: functions with type hints and a docstring, sync or async, for every rollout. A parameter annotated as
            `RolloutContext` tells one which rollout calls it; the model is not shown it.
        row_tools: further tools per rollout; `tools` and they are what that rollout may call.
        environments: TRL's contract: a factory, then each rollout gets its own instance, reset with its row and closed
            on every way out, all at the same time and outside the main thread; or instances that were reset already
            and that the caller closes.
        rows: dataset rows, passed to the environments' `reset`.
        limits: budgets, see `RolloutLimits`.
        prompt_ids: the prompts, if they are encoded already.
        parser: from a turn's text to what was meant; by default transformers' response parsing. A turn on which it
            raises a ValueError (JSON's too), SyntaxError, LookupError or RecursionError is malformed.
        encoder: by default `ObservationEncoder(tokenizer, ...)` under the same limits.
        protocol: how a model without tools calls its one tool, in place of `tools`; see `TagProtocol`.
        tool_runner: by default one with a deadline of 30 s per call, and per `reset` and `close`.
        stop_token_ids: every id that ends a turn; by default those the sampler stops at, or the tokenizer's eos.
        template_kwargs: as for `apply_chat_template`, the same for prompts and observations.
        any_live: told how many rollouts still run here, says whether any process still has one. An engine whose
            processes wait for each other is so asked for the same number of rounds everywhere. A sampler that overlaps
            tools is asked until all rollouts here have stopped.
        phase: opens a context around each part of a round, "sampling", "tools" and "observations", to measure it.

    Raises:
        ValueError: lists of unequal length, an argument that nothing reads, tools for a prompt that is a text, a
            template that cannot be used, or a protocol together with tools or environments.
    """
    check_arguments(
        prompts,
        tools=tools,
        environments=environments,
        rows=rows,
        limits=limits,
        prompt_ids=prompt_ids,
        parser=parser,
    )
    check_tokenizer(tokenizer)
    if protocol is not None and (tools or row_tools or environments):
        raise ValueError(BESIDE_A_PROTOCOL)
    stop_ids = known_stop_ids(stop_token_ids, sampler, tokenizer)
    limits, kwargs = limits or RolloutLimits(), dict(template_kwargs or {})
    guard = (encoder.guard if encoder is not None else ContentGuard(tokenizer)) if environments else None
    with (
        nullcontext(tool_runner) if tool_runner else closing(ToolRunner()) as runner,
        open_episodes(
            prompts,
            tools=tools or (),
            row_tools=row_tools,
            environments=environments,
            rows=rows,
            runner=runner,
            guard=guard,
        ) as episodes,
    ):
        used = all_tools(episodes)
        if prompt_ids is None:
            prompt_ids = [
                encode_prompt(e.prompt, e.tools, tokenizer, kwargs, observation=e.observation, guard=guard)
                for e in episodes
            ]
            check_encoder(encoder, used, kwargs)
        own = protocol.tools if protocol is not None else None
        states = [new_state(i, *pair, limits, own) for i, pair in enumerate(zip(episodes, prompt_ids, strict=True))]
        if protocol is not None:
            parser, encoder = parser or protocol.parse, encoder or protocol.encoder(limits)
        elif used:
            check_turns_end(stop_token_ids, stop_ids)
            parser = parser or TemplateParser(tokenizer, tools=used, stop_token_ids=stop_ids, template_kwargs=kwargs)
            encoder = encoder or template_encoder(tokenizer, used, stop_ids, limits, kwargs)
        check_parser_has_use(parser, encoder, any_prompt=bool(episodes))
        if isinstance(parser, TemplateParser):
            for state, episode in zip(states, episodes, strict=True):
                state.parser = parser.for_tools(episode.tools)
        play = player(TurnLoop(tokenizer, sampler, limits, parser, encoder, runner, stop_ids, phase, protocol))
        while any_live(len(live := [state for state in states if state.live])):
            play(live)
        return [state.freeze() for state in states]


def template_encoder(
    tokenizer: PreTrainedTokenizerBase,
    tools: list[Callable[..., Any]],
    stop_ids: Collection[int],
    limits: RolloutLimits,
    template_kwargs: dict[str, Any],
) -> ObservationEncoder:
    """Writes observations as the chat template does, under the limits of the rollouts."""
    return ObservationEncoder(
        tokenizer,
        tools=tools,
        stop_token_ids=stop_ids,
        max_observation_tokens=limits.max_observation_tokens,
        cut=limits.observation_cut,
        template_kwargs=template_kwargs,
    )


def player(loop: TurnLoop) -> Callable[[list[RolloutState]], None]:
    """What plays live rollouts: a round of all, or all to their end where the sampler overlaps tools."""
    if not getattr(loop.sampler, "overlap_tools", False):
        return loop.play_round
    return Waves(loop, cast(OverlappingSampler, loop.sampler), ToolFlight(loop.runner)).play


def new_state(
    index: int,
    episode: Episode,
    prompt_ids: Sequence[int],
    limits: RolloutLimits,
    protocol_tools: Mapping[str, Callable[..., Any]] | None,
) -> RolloutState:
    """A rollout at its start, finished already where nothing can be sampled."""
    tools, context = protocol_tools or tools_by_name(episode.tools), RolloutContext(index, episode.prompt)
    state = RolloutState(
        index,
        episode.prompt,
        as_tuple(prompt_ids),
        tools=bind_contexts(tools.items(), context),
        ordered_tools=episode.ordered_tools | {name for name, tool in tools.items() if takes_context(tool)},
        tool_context=context,
        environment=episode.environment,
        control_tokens=episode.control_tokens,
    )
    if episode.error:
        state.finish(StopReason.ENV_ERROR, episode.error)
    elif state.room(limits) < 1:
        state.finish(StopReason.PROMPT_TOO_LONG)
    return state
