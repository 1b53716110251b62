"""Does the program work? Runs the code of the final answer against the row's tests, see `sandbox.py` for the limits."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isclose
from typing import Any

from .reading import Rollout
from .reward import Reward, column_of
from .sandbox import Outcome, SandboxLimits, evaluate
from .values import is_whole

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Case:
    """One test: an expression whose value is compared outside of the sandbox.

    Example:
        Case("add(1, 2)", expected=3)
    """

    expression: str
    expected: Any = True
    truth: bool = False  # any true value passes: an `assert` without `==`

    def passed(self, outcome: Outcome) -> bool:
        if outcome.error:
            return False
        return bool(outcome.value) if self.truth else same(outcome.value, self.expected)


class UnitTests(Reward):
    """See `unit_tests`; runs the rollouts of a batch at the same time."""

    def __init__(self, column: str, setup_column: str | None, partial: bool, limits: SandboxLimits, workers: int):
        super().__init__(self.of_one, name="unit_tests", low=0.0, high=1.0)
        self.column, self.setup_column, self.partial = column, setup_column, partial
        self.limits, self.workers = limits, workers

    def scores(self, rollouts: list[Rollout], columns: Mapping[str, Any]) -> list[float | None]:
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(lambda rollout: None if rollout.failed else self.of_one(rollout), rollouts))

    def of_one(self, rollout: Rollout) -> float | None:
        cases = read_cases(column_of(rollout, self.column, "unit_tests"))
        if not cases:
            return None
        code = code_of(rollout.answer or "")
        if not code.strip():
            return 0.0
        setup = str(column_of(rollout, self.setup_column, "unit_tests") or "") if self.setup_column else ""
        outcomes = evaluate(code, [case.expression for case in cases], setup=setup, limits=self.limits)
        passed = sum(case.passed(outcome) for case, outcome in zip(cases, outcomes, strict=True))
        return passed / len(cases) if self.partial else float(passed == len(cases))


def unit_tests(
    column: str = "tests",
    *,
    setup_column: str | None = None,
    partial: bool = False,
    limits: SandboxLimits | None = None,
    workers: int = 2,
) -> Reward:
    """1.0 if the final answer's program passes all of the row's tests, else 0.0; with `partial` the share it passes.

    Reads the last fenced block of the final answer, or all of it where there is none. Without tests: None.

    A test is `{"call": "add(1, 2)", "equals": 3}` or `"assert add(1, 2) == 3"`; the column holds a list of them, or the
    list as JSON text. Values are compared outside of the sandbox, by their JSON (a tuple equals a list, numbers within
    1e-9), so the program sees neither what is expected nor the comparison. `assert` of anything but `== literal` (or
    `is None`) is decided inside: a program written to cheat can make it true.

    Example:
        unit_tests()(completions=["def add(a, b): return a + b"], tests=[["assert add(1, 2) == 3"]])     # [1.0]

    Args:
        setup_column: code that runs before the program, such as imports.
        workers: rollouts whose programs run at the same time.
    """
    if not is_whole(workers) or workers < 1:
        raise ValueError(f"unit_tests got workers={workers!r}, expected a whole number, at least 1")
    return UnitTests(column, setup_column, partial, limits or SandboxLimits(), workers)


def code_of(answer: str) -> str:
    """The last fenced block of an answer, one that was cut off included; without any, all of it."""
    blocks = FENCE.findall(answer)
    return blocks[-1] if blocks else answer


def read_cases(tests: str | Sequence[str | Mapping[str, Any]] | None) -> list[Case]:
    """The tests of a row.

    Raises:
        ValueError: one that is neither form.
    """
    if isinstance(tests, str):
        try:
            listed = json.loads(tests)
        except ValueError:
            return [case_of(tests)]
        return read_cases(listed if isinstance(listed, list) else [listed])
    return [case_of(test) for test in tests or ()]


def case_of(test: str | Mapping[str, Any]) -> Case:
    """`"assert add(1, 2) == 3"` -> `Case("add(1, 2)", 3)`; `"assert ok()"` -> `Case("bool(ok())", truth=True)`."""
    if isinstance(test, Mapping) and isinstance(test.get("call"), str) and "equals" in test:
        return Case(test["call"], json.loads(json.dumps(test["equals"])))
    try:
        (statement,) = ast.parse(test.strip() if isinstance(test, str) else "").body
    except (SyntaxError, ValueError):
        statement = ast.Pass()
    if not isinstance(statement, ast.Assert):
        raise ValueError(
            f"unit_tests found the test {str(test)[:80]!r}, expected one `assert ...` or "
            "{'call': ..., 'equals': ...}; put imports and helpers into setup_column"
        )
    match statement.test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            for value, other in ((left, right), (right, left)):
                if (literal := literal_of(other)) is not None and literal_of(value) is None:
                    return Case(ast.unparse(value), literal[0])
    return Case(f"bool({ast.unparse(statement.test)})", truth=True)


def literal_of(node: ast.expr) -> tuple[Any] | None:
    """(value,) as JSON holds it, or None for what is no literal or no JSON (a set, bytes)."""
    try:
        return (json.loads(json.dumps(ast.literal_eval(node), allow_nan=False)),)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None


def same(found: Any, expected: Any) -> bool:
    """Equal as JSON values, numbers within 1e-9; True is no 1."""
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(same(one, other) for one, other in zip(found, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(same(found[key], value) for key, value in expected.items())
        )
    if isinstance(expected, float) or isinstance(found, float):
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (found, expected))
        try:
            return numbers and isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
        except OverflowError:  # a whole number beyond all floats
            return False
    return type(found) is type(expected) and found == expected
