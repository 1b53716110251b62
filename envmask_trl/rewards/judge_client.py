"""Asks a chat endpoint and says whether trying again can help. Knows the `openai` client: no rubric, no verdict."""

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

Value = TypeVar("Value")
LONGEST_PAUSE_S = 60.0  # that the `openai` client makes between two tries, where a server asks for it


class Unavailable(Exception):
    """The endpoint gave no reply within its tries; a later batch may have more luck."""


class ChatClient:
    """One model behind one endpoint, asked at temperature 0. Safe to use from several threads.

    Time-outs, pauses that grow and `Retry-After` are the `openai` client's own. An endpoint that does not know JSON
    schemas (it answers 400 or 422) is asked without from then on.

    Example:
        ChatClient("judge", base_url="http://localhost:8000/v1", api_key=None, timeout_s=60.0, retries=4)
            .reply([{"role": "user", "content": "..."}], schema)     # '{"nonce": ...}'
    """

    def __init__(self, model: str, *, base_url: str | None, api_key: str | None, timeout_s: float, retries: int):
        try:
            from openai import OpenAI
        except ImportError as error:
            raise ImportError("Judge needs the openai client; pip install 'envmask_trl[judge]'") from error
        if base_url is not None and not base_url.startswith(("http://", "https://")):
            raise ValueError(f"the judge's base_url is {base_url!r}, expected one such as http://localhost:8000/v1")
        self.model = model
        self.client = OpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # a server of one's own wants no key, the client wants any
            timeout=timeout_s,
            max_retries=retries,
        )
        self.deadline_s = (retries + 1) * timeout_s + retries * LONGEST_PAUSE_S
        self.knows_schemas = True

    @property
    def identity(self) -> tuple[str, str]:
        """What tells two judges apart."""
        return self.model, str(self.client.base_url)

    def reply(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> str:
        """The text of the model's reply.

        Raises:
            Unavailable: no reply within the tries.
            RuntimeError: the endpoint refuses the request itself.
            ValueError: the reply is no chat completion with a text.
        """
        import openai

        try:
            if self.knows_schemas:
                try:
                    return self.once(messages, schema)
                except (openai.BadRequestError, openai.UnprocessableEntityError):
                    text = self.once(messages, None)
                    self.knows_schemas = False
                    return text
            return self.once(messages, None)
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise RuntimeError(
                f"the judge's endpoint {self.client.base_url} answered {error.status_code} for the model "
                f"{self.model!r}; check base_url, model and api_key"
            ) from error
        except (openai.APIConnectionError, openai.APIStatusError) as error:
            raise Unavailable(f"no reply from {self.client.base_url}: {type(error).__name__}") from error

    def once(self, messages: list[dict[str, str]], schema: dict[str, Any] | None) -> str:
        import openai

        extra: dict[str, Any] = {}
        if schema is not None:
            form = {"name": "verdict", "schema": schema, "strict": True}
            extra["response_format"] = {"type": "json_schema", "json_schema": form}
        try:
            completion = within(
                self.deadline_s,
                partial(
                    self.client.chat.completions.create,
                    model=self.model,
                    messages=cast(Any, messages),
                    temperature=0.0,
                    **extra,
                ),
            )
            content = completion.choices[0].message.content
        except (openai.APIResponseValidationError, ValueError, TypeError, AttributeError, LookupError) as error:
            raise ValueError("the endpoint's reply was no chat completion") from error
        if not isinstance(content, str):
            raise ValueError("the reply held no text")
        return content


def within(deadline_s: float, work: Callable[[], Value]) -> Value:
    """What `work` returns or raises, if that is soon enough.

    HTTP clients count a time-out anew for every read, so a server that sends a byte now and then is waited for without
    end. The thread that does is left behind.

    Raises:
        Unavailable: nothing came in `deadline_s` seconds.
    """
    done: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

    def run() -> None:
        try:
            done.put((True, work()))
        except BaseException as error:
            done.put((False, error))

    Thread(target=run, daemon=True).start()
    try:
        succeeded, value = done.get(timeout=deadline_s)
    except Empty:
        raise Unavailable(f"no whole reply within {deadline_s:g} s") from None
    if not succeeded:
        raise value
    return cast(Value, value)
