"""The turn loop. Knows token ids, text and tools: no tensors, no trainer.

Each round: sample all live rollouts, parse, run all calls of all rollouts at once, append the observations, drop the
rollouts that stopped. A sampler that can does not wait for slow tools: see `waves.py`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from ..trajectory import CallStatus, StopReason, ToolCall, ToolResult, Trajectory
from .arguments import check_arguments, check_encoder, check_parser_has_use, check_samples, known_stop_ids
from .environments import tools_by_name
from .episodes import Environments, Episode, all_tools, encode_prompt, open_episodes
from .limits import RolloutLimits
from .observations import ObservationEncoder
from .samplers import OverlappingSampler, Sample, Sampler, as_tuple
from .search.tag_protocol import TagProtocol
from .state import RolloutState
from .tool_calls import InconsistentTurn, ParsedTurn, TemplateParser, TurnParser, find_unusable, short_reason
from .tool_context import RolloutContext, bind_contexts, takes_context
from .tool_flight import ToolFlight
from .tools import ToolRunner
from .waves import Waves

Phase = Callable[[str], AbstractContextManager]
BESIDE_A_PROTOCOL = "a protocol calls a tool of its own; leave out tools, row_tools and environments"
UNREADABLE_TEXT = (ValueError, SyntaxError, LookupError, RecursionError)  # of a model's text; others are faults
UNREADABLE = "unreadable_call"  # stands in for the name of a call that could not be read


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
            on every way out; or instances that were reset already and that the caller closes.
        rows: dataset rows, passed to the environments' `reset`.
        limits: budgets, see `RolloutLimits`.
        prompt_ids: the prompts, if they are encoded already.
        parser: from a turn's text to what was meant; by default transformers' response parsing. A turn on which it
            raises a ValueError (JSON's too), SyntaxError, LookupError or RecursionError is malformed.
        encoder: by default `ObservationEncoder(tokenizer, ...)` under the same limits.
        protocol: how a model without tools calls its one tool, in place of `tools`; see `TagProtocol`.
        tool_runner: by default one with a deadline of 30 s per call.
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
    if protocol is not None and (tools or row_tools or environments):
        raise ValueError(BESIDE_A_PROTOCOL)
    limits, kwargs = limits or RolloutLimits(), dict(template_kwargs or {})
    with (
        nullcontext(tool_runner) if tool_runner else closing(ToolRunner()) as runner,
        open_episodes(
            prompts, tools=tools or (), row_tools=row_tools, environments=environments, rows=rows, runner=runner
        ) as episodes,
    ):
        ids: Any = prompt_ids
        if prompt_ids is None:
            ids = [encode_prompt(e.prompt, e.tools, tokenizer, kwargs) for e in episodes]
        states = [new_state(i, *pair, limits) for i, pair in enumerate(zip(episodes, ids, strict=True))]
        if protocol is not None:
            parser, encoder = parser or protocol.parse, encoder or protocol.encoder(limits)
            for state in states:
                state.tools = protocol.tools
        used = all_tools(episodes)
        stop_ids = known_stop_ids(stop_token_ids, sampler, tokenizer, needed=bool(used))
        if prompt_ids is None:
            check_encoder(encoder, used, kwargs)
        if used:
            parser = parser or TemplateParser(tokenizer, tools=used, stop_token_ids=stop_ids, template_kwargs=kwargs)
            encoder = encoder or ObservationEncoder(
                tokenizer,
                tools=used,
                stop_token_ids=stop_ids,
                max_observation_tokens=limits.max_observation_tokens,
                cut=limits.observation_cut,
                template_kwargs=kwargs,
            )
        check_parser_has_use(parser, encoder, any_prompt=bool(episodes))
        loop = TurnLoop(tokenizer, sampler, limits, parser, encoder, runner, stop_ids, phase, protocol)
        overlaps = getattr(sampler, "overlap_tools", False)
        play = Waves(loop, cast(OverlappingSampler, sampler), ToolFlight(runner)).play if overlaps else loop.play_round
        while any_live(len(live := [state for state in states if state.live])):
            play(live)
        return [state.freeze() for state in states]


def new_state(index: int, episode: Episode, prompt_ids: Sequence[int], limits: RolloutLimits) -> RolloutState:
    """A rollout at its start, finished already where nothing can be sampled."""
    tools, context = tools_by_name(episode.tools), RolloutContext(index, episode.prompt)
    state = RolloutState(
        index,
        episode.prompt,
        as_tuple(prompt_ids),
        tools=bind_contexts(tools.items(), context),
        ordered_tools=episode.ordered_tools | {name for name, tool in tools.items() if takes_context(tool)},
        tool_context=context,
        environment=episode.environment,
    )
    if episode.error:
        state.finish(StopReason.ENV_ERROR, episode.error)
    elif state.room(limits) < 1:
        state.finish(StopReason.PROMPT_TOO_LONG)
    return state


@dataclass(frozen=True, slots=True)
class TurnLoop:
    """Plays rounds. Everything that changes is in the states."""

    tokenizer: PreTrainedTokenizerBase
    sampler: Sampler
    limits: RolloutLimits
    parser: TurnParser | None  # None without tools: a turn is then always an answer
    encoder: ObservationEncoder | None
    runner: ToolRunner
    stop_ids: frozenset[int]
    phase: Phase
    protocol: TagProtocol | None = None

    def play_round(self, live: list[RolloutState]) -> None:
        """One turn of the model for each live rollout, then one round of all their calls."""
        budgets = [self.budget(state) for state in live]
        with self.phase("sampling"):
            samples = self.sampler.sample([state.context() for state in live], budgets)
        check_samples(samples, live)
        for state, sample, budget in zip(live, samples, budgets, strict=True):
            self.take_turn(state, sample, budget)
        self.answer_calls([state for state in live if state.live])

    def budget(self, state: RolloutState) -> int:
        """The most tokens that the next turn may have."""
        room = state.room(self.limits)
        return min(room, self.limits.max_turn_tokens or room)

    def take_turn(self, state: RolloutState, sample: Sample, budget: int) -> None:
        """Append what was sampled and decide whether the rollout goes on."""
        if len(sample.token_ids) > budget:
            raise ValueError(
                f"the sampler returned {len(sample.token_ids)} tokens for rollout {state.index}, "
                f"whose budget is {budget}"
            )
        if not sample.token_ids:
            state.finish(StopReason.LENGTH)
            return
        if self.protocol is not None:
            sample = self.protocol.cut(sample)
        was_cut = sample.finish_reason == "length"
        turn = self.plain(sample) if was_cut or self.parser is None else self.read(sample)
        state.add_turn(sample, turn)
        state.closed = sample.token_ids[-1] in self.stop_ids
        if was_cut:
            state.finish(StopReason.LENGTH)
        elif turn.kind == "answer":
            state.finish(StopReason.ANSWERED)
        elif state.tool_rounds >= self.limits.max_tool_calling_iterations:
            state.finish(StopReason.MAX_TURNS)
        elif not self.has_room_for_results(state):
            state.finish(StopReason.CONTEXT_FULL)

    def read(self, sample: Sample) -> ParsedTurn:
        assert self.parser is not None
        try:
            turn = self.parser(str(self.tokenizer.decode(list(sample.token_ids))))
        except InconsistentTurn:
            raise
        except UNREADABLE_TEXT as error:
            return ParsedTurn("malformed", self.plain(sample).message, reason=short_reason(error))
        if not isinstance(turn, ParsedTurn):
            raise ValueError(f"the parser returned a {type(turn).__name__}, expected a ParsedTurn")
        if (problem := find_unusable(turn.calls)) is not None:
            return ParsedTurn("malformed", self.plain(sample).message, reason=problem)
        return turn

    def plain(self, sample: Sample) -> ParsedTurn:
        """A turn of which nothing is run, as text."""
        content = self.tokenizer.decode(list(sample.token_ids), skip_special_tokens=True)
        return ParsedTurn("answer", {"role": "assistant", "content": content})

    def has_room_for_results(self, state: RolloutState) -> bool:
        """Whether the scaffold, shortest contents and a short answer fit. Asked before a tool is run, not after."""
        assert self.encoder is not None
        calls = calls_or_stand_in(state)
        least = self.encoder.scaffold_tokens(calls, closed=state.closed) + self.encoder.min_content_tokens * len(calls)
        return least + self.limits.min_answer_tokens <= state.room(self.limits)

    def answer_calls(self, states: list[RolloutState]) -> None:
        """Run the calls of all rollouts at once and show each its results."""
        with self.phase("tools"):
            all_results = self.runner.run([state.job() for state in states]) if states else []
        for state, results in zip(states, all_results, strict=True):
            self.take_results(state, results)

    def take_results(self, state: RolloutState, results: list[ToolResult]) -> None:
        """Record what the calls of a rollout returned, and show it unless the rollout ends here."""
        results = results or [unreadable(state)]
        state.add_results(results)
        if (failure := environment_failure(results)) is not None:
            state.finish(StopReason.ENV_ERROR, failure)
        elif state.is_done():
            state.finish(StopReason.ENV_DONE)
        elif state.malformed_calls > self.limits.max_malformed_calls:
            state.finish(StopReason.MALFORMED)
        else:
            self.show_results(state, results)

    def show_results(self, state: RolloutState, results: list[ToolResult]) -> None:
        assert self.encoder is not None
        with self.phase("observations"):
            observation = self.encoder.encode(
                calls_or_stand_in(state),
                [result.content for result in results],
                closed=state.closed,
                max_tokens=state.room(self.limits) - self.limits.min_answer_tokens,
                history=state.history(),
            )
        if observation is None:
            state.finish(StopReason.CONTEXT_FULL)
        else:
            state.observe(observation, results)


def environment_failure(results: Sequence[ToolResult]) -> str | None:
    """What the first call said that lost its infrastructure."""
    said = (result.content for result in results if result.status is CallStatus.ABORTED)
    return next((text.removeprefix("Error: ") for text in said), None)


def calls_or_stand_in(state: RolloutState) -> tuple[ToolCall, ...]:
    """The calls of the last turn, or one that stands for a turn that could not be read."""
    return state.calls or (ToolCall(f"call{state.num_turns - 1:02d}000", UNREADABLE, {}),)


def unreadable(state: RolloutState) -> ToolResult:
    """The corrective answer to a turn that could not be read; nothing was run."""
    (call,) = calls_or_stand_in(state)
    content = f"Error: the tool call could not be read ({state.problem}); nothing was run. Write it again."
    return ToolResult(call.id, call.name, content, CallStatus.MALFORMED, latency_s=0.0)
