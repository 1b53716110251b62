"""Finds the conversation of a row and checks who speaks when. Knows messages and roles: no calls, no tools."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from ...trajectory import Message
from .findings import Kind, Problem, echo
from .rows import describe_json_error, read_json

COLUMNS = ("messages", "conversation", "conversations")
ROLES = ("system", "developer", "user", "assistant", "tool")
OTHER_NAMES = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "function": "tool"}
OTHER_NAMES |= {"observation": "tool", "function_response": "tool", "ipython": "tool", "environment": "tool"}
ROLE_NAMES = ", ".join(ROLES)


class Conversation(NamedTuple):
    """The messages of a row.

    Example:
        Conversation("prompt", [{"role": "user", "content": "How warm is Oslo?"}], is_prompt=True)
    """

    column: str
    messages: list[Message]
    is_prompt: bool  # a model is to go on from here, so nothing of it needs an answer


def read_conversation(row: Mapping[str, Any]) -> Conversation | Problem:
    """The column `messages`, `conversation` or `conversations`, or else `prompt`, with `completion` if there is one."""
    for column in COLUMNS:
        if row.get(column) is not None:
            messages = read_messages(column, row[column])
            return messages if isinstance(messages, Problem) else Conversation(column, messages, is_prompt=False)
    if row.get("prompt") is None:
        expected = f"one of {', '.join(COLUMNS)} or prompt"
        found = f"the columns {echo(sorted(map(str, row)))}"
        return Problem(Kind.COLUMNS, found, expected, "rename the column that holds the conversation")
    prompt = read_messages("prompt", row["prompt"], role="user")
    if isinstance(prompt, Problem) or row.get("completion") is None:
        return prompt if isinstance(prompt, Problem) else Conversation("prompt", prompt, is_prompt=True)
    completion = read_messages("completion", row["completion"], role="assistant")
    return (
        completion
        if isinstance(completion, Problem)
        else Conversation("prompt", [*prompt, *completion], is_prompt=False)
    )


def read_messages(column: str, value: Any, role: str | None = None) -> list[Message] | Problem:
    """A list of messages, also as JSON text; with `role`, a plain text is one message of that role."""
    if isinstance(value, str):
        if role is not None and not value.lstrip().startswith("[{"):
            return [{"role": role, "content": value}]
        try:
            value = read_json(value)
        except (ValueError, RecursionError) as error:
            found = f"{column} is text: {describe_json_error(error, value)}"
            return Problem(Kind.BROKEN_JSON, found, "a list of messages", "give the messages as a list")
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        return value
    return Problem(Kind.COLUMNS, f"{column} is {echo(value)}", "a list of at least one message", "drop or repair it")


def check_roles(conversation: Conversation) -> Iterator[Problem]:
    """Roles that are missing, unknown or out of turn; one finding for each."""
    messages = conversation.messages
    for index, message in enumerate(messages):
        role = message.get("role")
        if role in ROLES:
            continue
        if role is None and "from" in message:
            remedy = "rename from to role and value to content"
        else:
            remedy = f"rename it to {OTHER_NAMES.get(str(role), 'one of these')}"
        yield Problem(Kind.ROLES, f"message {index} has the role {echo(role)}", ROLE_NAMES, remedy)
        return
    roles = [message["role"] for message in messages]
    yield from check_order(messages, roles)
    if "user" not in roles:
        yield Problem(Kind.ROLES, "no user message", "at least one", "many chat templates raise: add the question")
    remedy = "name the column prompt if a model is to answer it"
    if not conversation.is_prompt and "assistant" not in roles:
        yield Problem(Kind.ROLES, f"no assistant message in {conversation.column}", "at least one", remedy)
    elif not conversation.is_prompt and roles[-1] == "user":
        yield Problem(Kind.ROLES, f"message {len(roles) - 1}, the last one, is the user's", "an answer to it", remedy)
    callers = [index for index, each in enumerate(messages) if each.get("tool_calls") and each["role"] != "assistant"]
    if callers:
        found = f"message {callers[0]}, the {roles[callers[0]]}'s, has tool_calls"
        yield Problem(Kind.ROLES, found, "calls by the assistant only", "give the message its right role")


def check_order(messages: list[Message], roles: list[str]) -> Iterator[Problem]:
    first = next((index for index, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
    for index, role in enumerate(roles[first:], first):
        if role in ("system", "developer"):
            yield Problem(Kind.ROLES, f"message {index} is a {role} message", "it comes first", "move it to the start")
            break
    for index, (before, role) in enumerate(pairwise(roles), 1):
        if before == role and role in ("user", "assistant") and not messages[index - 1].get("tool_calls"):
            found = f"messages {index - 1} and {index} are both the {role}'s"
            yield Problem(Kind.ROLES, found, "somebody else between them", "join them into one message")
            break
        if before == "tool" and role == "user":
            found = f"the user speaks in message {index}, before the tool in message {index - 1} is answered"
            yield Problem(Kind.ROLES, found, "the assistant after a tool", "add the assistant's turn between them")
            break


def check_contents(messages: list[Message]) -> Iterator[Problem]:
    """Contents that are neither text nor content blocks, and turns that say nothing and call nothing."""
    for index, message in enumerate(messages):
        content, role = message.get("content"), message.get("role")
        if not (content is None or is_content(content)):
            found = f"the content of message {index} is {echo(content)}"
            yield Problem(Kind.CONTENT, found, "text or a list of content blocks", "write it as text: json.dumps")
            return
        says_nothing = not any(block.get("type", "text") != "text" for block in blocks_of(content)) and (
            not text_of(message).strip()
        )
        may_say_nothing = message.get("tool_calls") or (role == "tool" and content is not None)
        if says_nothing and not may_say_nothing:  # a turn of calls needs no text, and a tool may return nothing
            found = f"message {index}, the {role}'s, is empty"
            yield Problem(Kind.CONTENT, found, "text or calls", "drop the message, or the row")
            return


def is_content(content: Any) -> bool:
    return isinstance(content, str) or (isinstance(content, list) and all(isinstance(block, dict) for block in content))


def blocks_of(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else []


def text_of(message: Message) -> str:
    """The text of a message; of content blocks, that of the text blocks."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(block.get("text") or "") for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else ""
