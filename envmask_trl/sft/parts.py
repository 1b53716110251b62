"""A fine-tuning row's parts, what each weighs, and why a row cannot be used. Knows ids, no tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from math import inf

from ..trajectory import Source

IGNORED = -100  # the label that no loss counts


class Kind(StrEnum):
    """What a part of a model's turn is for."""

    THOUGHT = "thought"  # what stands before the call or the answer
    CALL = "call"
    ANSWER = "answer"  # a turn without a call, or what stands behind its thought; also text that is none of these


class Reason(StrEnum):
    """Why a row is dropped."""

    NOT_A_ROLLOUT = "not_a_rollout"  # messages in an order that no rollout has
    TOOLS = "tools"  # the row's own tools are no JSON schemas that the template can show
    TEMPLATE = "template"  # the chat template cannot write the conversation as the model would have
    UNBALANCED = "unbalanced_tags"  # an observation that is never closed, closed twice, or holds a tag itself
    NEAR_MISS = "near_miss"  # a tag in other letters or with other spaces than the format's
    NOT_A_TURN = "not_a_turn"  # the text between two observations is not one turn of the format
    NOT_FOUND = "not_found"  # a given observation is not in the text, or in more than one way
    SPANS_BOUNDARY = "token_spans_boundary"  # one token holds text of the model and of the observation
    TEXT = "text"  # not a text that can be encoded
    CUT = "cut_by_max_length"  # nothing that is trained is left
    NOTHING_TRAINED = "nothing_trained"  # the weights leave nothing to train


class RowProblem(ValueError):
    """A row that cannot be masked without a guess.

    Example:
        RowProblem(Reason.UNBALANCED, "'</observation>' closes nothing at '...</observation> and'")
    """

    def __init__(self, reason: Reason, detail: str):
        super().__init__(f"{reason.value}: {detail}")
        self.reason, self.detail = reason, detail

    def __reduce__(self) -> tuple:  # exceptions are pickled by their one message, and this one has two arguments
        return type(self), (self.reason, self.detail)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of consecutive tokens of one author and one kind.

    Example:
        Part(Source.MODEL, (10, 11, 19), Kind.CALL, turn=0)
    """

    source: Source
    token_ids: tuple[int, ...]
    kind: Kind | None = None  # of MODEL parts only
    turn: int = -1  # which of the model's turns
    failed: bool = False  # the turn's call was answered with an error
    learned: bool = True  # unless the turn's message says otherwise


@dataclass(frozen=True, slots=True)
class PartWeights:
    """What each part of the model's text weighs in the loss; whatever the model did not write weighs nothing.

    Weights other than 0 and 1 need `WeightedSFTTrainer`; labels alone can only keep a token or leave it out.

    Example:
        PartWeights(thought=0.0, mask_failed_turns=True)     # learn calls and answers, of turns that worked

    Raises:
        ValueError: a weight is negative, or all are 0.
    """

    thought: float = 1.0
    call: float = 1.0
    answer: float = 1.0
    mask_failed_turns: bool = False  # leave out turns whose call was answered with an error; they stay visible
    last_turn_only: bool = False

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.type is float}
        numbers = all(isinstance(value, int | float) and 0 <= value < inf for value in values.values())
        if not numbers or not any(values.values()):
            raise ValueError(f"part weights are {values}, expected finite numbers, none below 0 and one above")

    @property
    def fractional(self) -> bool:
        return not {self.thought, self.call, self.answer} <= {0.0, 1.0}

    @property
    def by_part(self) -> bool:
        """Whether it matters what a part is for."""
        return not self.thought == self.call == self.answer == 1.0

    def of(self, part: Part, *, last_turn: int) -> float:
        if part.kind is None or not part.learned or (self.mask_failed_turns and part.failed):
            return 0.0
        if self.last_turn_only and part.turn != last_turn:
            return 0.0
        return {Kind.THOUGHT: self.thought, Kind.CALL: self.call, Kind.ANSWER: self.answer}[part.kind]

    def spread(self, parts: Sequence[Part]) -> list[float]:
        """One weight per token of a row.

        Example:
            parts    P P   c c E   n t t h   a E
            weights  0 0   1 1 1   0 0 0 0   1 1
        """
        last_turn = max((part.turn for part in parts), default=-1)
        return [weight for part in parts for weight in [self.of(part, last_turn=last_turn)] * len(part.token_ids)]
