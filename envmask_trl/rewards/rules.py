"""All rule rewards under one name: `rules.exact_answer()`, `rules.call_validity(tools)`, ... Holds no code."""

from .answers import (
    em_answer,
    exact_answer,
    f1_answer,
    final_state,
    in_tag,
    math_answer,
    number_answer,
    set_answer,
)
from .calls import call_validity, gold_steps
from .code import unit_tests
from .efficiency import dead_loop, repeated_calls, step_cost
from .form import answer_length, answer_tag, overlong

__all__ = [
    "answer_length",
    "answer_tag",
    "call_validity",
    "dead_loop",
    "em_answer",
    "exact_answer",
    "f1_answer",
    "final_state",
    "gold_steps",
    "in_tag",
    "math_answer",
    "number_answer",
    "overlong",
    "repeated_calls",
    "set_answer",
    "step_cost",
    "unit_tests",
]
