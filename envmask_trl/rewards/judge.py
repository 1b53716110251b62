"""A language model as the judge, behind any OpenAI-compatible endpoint. Knows rollouts, a cache and when to give up.

rollout  --judge_prompt-->  messages  --judge_client-->  reply  --read_verdict-->  score   (asked again if unreadable)
             \\______ judge_cache: answered before? ______/
"""

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from .judge_cache import VerdictCache
from .judge_client import ChatClient, Unavailable
from .judge_prompt import Question, ask, read_verdict, reminder
from .reading import Rollout
from .reward import Reward, column_of, is_number
from .values import is_whole

logger = logging.getLogger(__name__)


class Judge(Reward):
    """Scores final answers by a rubric, from 0.0 to 1.0; `on_failure` where no verdict could be had.

    Rollouts of a batch are judged at the same time, and each question once: verdicts are kept on disk under a hash of
    everything that the judge was shown and how it was asked. A rollout without a final answer gets 0.0 unasked.

    The candidate cannot address the judge: its text is a JSON string between delimiters with a random number that the
    candidate never saw, and a verdict counts only if it repeats that number and fits the schema. A judge can
    still be talked into a good score by an answer that looks good: log a rule beside it, see `hacking`.

    Needs `pip install 'envmask_trl[judge]'`. For a reward model instead of a judge, give its name or the model to the
    trainer among `reward_funcs`: TRL loads and runs it.

    Example:
        judge = Judge(
            "The answer names the right city and gives a reason.", model="Qwen/Qwen3-32B",
            base_url="http://localhost:8000/v1", reference_column="answer", cache="runs/judge.sqlite",
        )
        EnvMaskGRPOTrainer(model, reward_funcs=[judge], ...)

    Args:
        rubric: what makes an answer good, in words.
        model: as the endpoint calls it.
        base_url: of the endpoint; None takes OPENAI_BASE_URL, else OpenAI's own.
        api_key: None takes OPENAI_API_KEY; servers of your own usually want none.
        reference_column: a dataset column with the right answer, shown to the judge.
        shows: "answer" is the final answer, "model_text" everything that the model wrote. Never an observation.
        scale: the judge gives whole or decimal points from 0 to this; the reward is their share.
        cache: file of the cache, None for none.
        workers: requests at the same time.
        timeout_s: seconds after which a request without a whole answer counts as failed.
        retries: more tries after time-outs, lost connections, 408, 409, 429 and 5xx, each after a longer pause.
        asks: how often a question is asked until a verdict can be read.
        on_failure: the reward without a verdict; None: does not apply.
        max_chars: a longer text is cut in its middle, with a mark.

    Raises:
        RuntimeError: while scoring, if the endpoint refuses what no retry can change (a wrong key, an unknown model).
    """

    def __init__(
        self,
        rubric: str,
        *,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        reference_column: str | None = None,
        shows: Literal["answer", "model_text"] = "answer",
        scale: float = 10.0,
        cache: str | Path | None = None,
        workers: int = 16,
        timeout_s: float = 60.0,
        retries: int = 4,
        asks: int = 2,
        on_failure: float | None = None,
        max_chars: int = 20_000,
        name: str = "judge",
    ):
        super().__init__(self.of_one, name=name, low=0.0, high=1.0)
        check_texts(rubric=rubric, model=model)
        check_numbers(scale=scale, timeout_s=timeout_s)
        check_numbers(whole=True, workers=workers, retries=retries, asks=asks, max_chars=max_chars)
        if shows not in ("answer", "model_text"):
            raise ValueError(f"Judge got shows={shows!r}, expected 'answer' or 'model_text'")
        if on_failure is not None and not (is_number(on_failure) and 0 <= on_failure <= 1):
            raise ValueError(f"Judge got on_failure={on_failure!r}, expected a reward from 0 to 1, or None")
        self.rubric, self.reference_column, self.shows, self.scale = rubric, reference_column, shows, scale
        self.workers, self.asks, self.on_failure, self.max_chars = workers, asks, on_failure, max_chars
        self.client = ChatClient(
            model,
            base_url=base_url or os.environ.get("OPENAI_BASE_URL"),
            api_key=api_key or os.environ.get("OPENAI_API_KEY"),
            timeout_s=timeout_s,
            retries=retries,
        )
        self.cache = VerdictCache(cache)

    def scores(self, rollouts: list[Rollout], columns: Mapping[str, Any]) -> list[float | None]:
        questions = [self.question(rollout) for rollout in rollouts]
        known = {question: self.cache.get(self.key(question)) for question in questions if question is not None}
        new = [question for question, verdict in known.items() if verdict is None]
        start_s = perf_counter()
        with ThreadPoolExecutor(self.workers) as pool:
            verdicts = list(pool.map(self.judged, new))
        known.update(zip(new, verdicts, strict=True))
        failed = verdicts.count(None)
        if failed:
            logger.warning(
                f"{self.__name__}: no verdict on {failed} of {len(new)} questions, they get {self.on_failure}"
            )
        self.log(columns, asked=len(new), failed=failed, of=sum(q is not None for q in questions), start_s=start_s)
        return [
            self.without_question(rollout) if question is None else self.as_reward(known[question])
            for rollout, question in zip(rollouts, questions, strict=True)
        ]

    def of_one(self, rollout: Rollout) -> float | None:
        return self.scores([rollout], {})[0]

    def question(self, rollout: Rollout) -> Question | None:
        """What the judge is shown of a rollout, None where there is nothing to judge."""
        if rollout.failed or rollout.answer is None or not rollout.answer.strip():
            return None
        reference = None
        if self.reference_column is not None:
            gold = column_of(rollout, self.reference_column, self.__name__)
            reference = None if gold is None else shortened(str(gold), self.max_chars)
        candidate = rollout.answer if self.shows == "answer" else rollout.model_text
        return Question(
            rubric=self.rubric,
            task=shortened(rollout.question, self.max_chars),
            candidate=shortened(candidate, self.max_chars),
            reference=reference,
            scale=self.scale,
        )

    def without_question(self, rollout: Rollout) -> float | None:
        return None if rollout.failed else 0.0

    def as_reward(self, points: float | None) -> float | None:
        return self.on_failure if points is None else points / self.scale

    def key(self, question: Question) -> tuple[Any, ...]:
        return (*self.client.identity, *question.identity)

    def judged(self, question: Question) -> float | None:
        """The points that the judge gives, None if it is not to be reached or gives no verdict that can be read."""
        problems: list[str] = []
        for _ in range(self.asks):
            messages, nonce, schema = ask(question)
            if problems:
                messages = [*messages, reminder(problems[-1])]
            try:
                reply = self.client.reply(messages, schema)
                points = read_verdict(reply, nonce, self.scale)
            except Unavailable as error:
                problems.append(str(error))
                break
            except ValueError as error:
                problems.append(str(error))
                continue
            self.cache.put(self.key(question), points)
            return points
        logger.info(f"{self.__name__}: {problems[-1]}")
        return None

    def log(self, columns: Mapping[str, Any], *, asked: int, failed: int, of: int, start_s: float) -> None:
        """Through TRL's logger, where a trainer passes one."""
        log_metric = columns.get("log_metric")
        if log_metric is None or not of:
            return
        log_metric(f"{self.__name__}/cached_share", 1 - asked / of)
        log_metric(f"{self.__name__}/failed_share", failed / of)
        log_metric(f"{self.__name__}/time_s", perf_counter() - start_s)


def check_texts(**texts: Any) -> None:
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"Judge got {name}={text!r}, expected a text that is not empty")


def check_numbers(*, whole: bool = False, **numbers: Any) -> None:
    """Raise ValueError on an option that is no number, or below what it can be: only `retries` may be 0."""
    for name, value in numbers.items():
        fits = is_whole(value) if whole else is_number(value)
        if not fits or value < 0 or (value == 0 and name != "retries"):
            bound = "0 or more" if name == "retries" else "above 0"
            raise ValueError(f"Judge got {name}={value!r}, expected a {'whole ' * whole}number, {bound}")


def shortened(text: str, max_chars: int) -> str:
    """At most `max_chars` characters of the text, from both of its ends; half a character becomes U+FFFD."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(text) <= max_chars:
        return text
    mark = f"\n[... {len(text) - max_chars} characters left out ...]\n"
    return text[: max_chars // 2] + mark + text[len(text) - max_chars // 2 :]
