"""Tools that answer all calls of a round together. Knows callables and locks: no tokens, no retriever.

round     rollout 0: search("Oslo")    rollout 1: search("Lima")    rollout 2: search("Oslo")
tool      answer_all([{"query": "Oslo"}, {"query": "Lima"}, {"query": "Oslo"}])     once
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from threading import Lock
from typing import Any


class BatchedTool(ABC):
    """Has one method that is a tool, whose calls of one round, of all rollouts, are answered by one `answer_all`.

    Example:
        class Table(BatchedTool):
            def lookup(self, key: str) -> str:
                '''What the model is told, and its arguments.'''
            def answer_all(self, arguments):
                return [rows.get(call["key"]) for call in arguments]

        run_rollouts(prompts, tokenizer=tokenizer, sampler=sampler, tools=[Table().lookup])
    """

    @abstractmethod
    def answer_all(self, arguments: Sequence[dict[str, Any]]) -> Sequence[Any]:
        """One value per call, in order; an exception among them is the error of its call alone."""


class RoundBatch:
    """The calls of one round to one batched tool: the first that is at work asks for all, the others wait for it.

    Example:
        batch = RoundBatch(tool)
        first, second = batch.join({"query": "Oslo"}), batch.join({"query": "Lima"})
        first(query="Oslo"), second(query="Lima")
    """

    def __init__(self, tool: BatchedTool):
        self.tool = tool
        self.arguments: list[dict[str, Any]] = []
        self._answers: list[list[Any]] = []  # of each attempt, for a runner that tries again
        self._lock = Lock()

    def join(self, arguments: dict[str, Any]) -> Callable[..., Any]:
        """Add a call; returns what runs it, with the same arguments."""
        place, attempts = len(self.arguments), iter(range(2**31))
        self.arguments.append(arguments)

        def answer(**_: Any) -> Any:
            value = self._attempt(next(attempts))[place]
            if isinstance(value, BaseException):
                raise value
            return value

        return answer

    def _attempt(self, number: int) -> list[Any]:
        with self._lock:
            if number == len(self._answers):
                self._answers.append(self._answer_all())
            return self._answers[number]

    def _answer_all(self) -> list[Any]:
        try:
            answers = list(self.tool.answer_all(deepcopy(self.arguments)))
        except BaseException as error:  # each call is told, as if it had been alone
            return [error] * len(self.arguments)
        if len(answers) != len(self.arguments):
            problem = f"answer_all returned {len(answers)} values for {len(self.arguments)} calls"
            return [ValueError(problem)] * len(self.arguments)
        return answers


def batched_owner(tool: Callable[..., Any] | None) -> BatchedTool | None:
    """The batched tool that this callable is a method of; None of any other callable."""
    owner = tool.__self__ if inspect.ismethod(tool) else None
    return owner if isinstance(owner, BatchedTool) else None
