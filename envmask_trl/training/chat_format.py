"""How a trainer reads turns and writes observations, and whether its chat template allows it. Knows no tensors."""

from typing import TYPE_CHECKING

from transformers.utils import logging

from ..inspect.template_check import TOOLS_NOT_SHOWN, judge_template
from ..inspect.template_verdict import FindingKind
from ..rollout.content_guard import ContentGuard
from ..rollout.loop import BESIDE_A_PROTOCOL
from ..rollout.observations import ObservationEncoder
from ..rollout.tool_calls import TemplateParser, TurnParser
from .functions_given import check_names, check_schema

if TYPE_CHECKING:
    from .trainer import EnvMaskGRPOTrainer

logger = logging.get_logger(__name__)


def chat_format(
    trainer: "EnvMaskGRPOTrainer", parser: TurnParser | None
) -> tuple[TurnParser | None, ObservationEncoder | None]:
    """The parser, by default transformers' response parsing, and the encoder of a trainer with tools.

    Raises:
        ValueError: the chat template cannot be trained with; the verdict says why and what to do. Or there are tools
            beside a protocol.
    """
    if trainer.protocol is not None:
        if trainer.tools:
            raise ValueError(BESIDE_A_PROTOCOL)
        limits = trainer.args.limits(max_total_length=None)
        return parser or trainer.protocol.parse, trainer.protocol.encoder(limits)
    if not trainer.tools:
        return parser, None
    own = [tool for tool in trainer.tools if tool not in trainer.standalone_tools]  # of environments
    for tool in own:
        check_schema(f"a method of {type(getattr(tool, '__self__', tool)).__name__}", tool)
    check_names([tool.__name__ for tool in trainer.standalone_tools] + sorted({tool.__name__ for tool in own}))
    tokenizer, stop_ids, kwargs = trainer.processing_class, trainer.eos_token_ids, trainer.template_kwargs
    check_template_of(trainer, ignore=FindingKind.UNREADABLE_CALLS if parser is not None else None)
    parser = parser or TemplateParser(tokenizer, tools=trainer.tools, stop_token_ids=stop_ids, template_kwargs=kwargs)
    encoder = ObservationEncoder(
        tokenizer,
        tools=trainer.tools,
        stop_token_ids=stop_ids,
        control_tokens=trainer.args.control_tokens,
        max_observation_tokens=trainer.args.max_observation_tokens,
        cut=trainer.args.observation_cut,
        mode=trainer.args.observation_mode,
        strict=trainer.args.strict_observations,
        template_kwargs=kwargs,
    )
    return parser, encoder


def environment_guard(trainer: "EnvMaskGRPOTrainer") -> ContentGuard | None:
    """Keeps what environments say in `reset` from becoming control tokens, as the encoder does for tools."""
    if trainer.environment_factories is None:
        return None
    if trainer.encoder is not None:
        return trainer.encoder.guard
    return ContentGuard(trainer.processing_class, trainer.args.control_tokens)


def check_template_of(trainer: "EnvMaskGRPOTrainer", *, ignore: FindingKind | None) -> None:
    verdict = judge_template(
        trainer.processing_class, trainer.tools, stop_token_ids=trainer.eos_token_ids, **trainer.template_kwargs
    )
    if any(finding.kind.refuses and finding.kind is not ignore for finding in verdict.findings):
        raise ValueError(str(verdict))
    if FindingKind.TOOLS_NOT_SHOWN in verdict.kinds:
        logger.warning(f"{TOOLS_NOT_SHOWN}; check_template(tokenizer, tools) says what else it does")
    logger.info(str(verdict))
