"""The weather and calculator demonstrations as tagged text, without an end of turn behind a call. Knows text and tags.

How warm is Oslo?
<action>{"name": "weather", "arguments": {"city": "Oslo"}}</action><observation>{"temperature":27}</observation>
27<|im_end|>
"""

import json
import re

from transformers import PreTrainedTokenizerBase

from envmask_trl import ParsedTurn, TagFormat, ToolCall

FORMAT = TagFormat(observation=("<observation>", "</observation>"), call=("<action>", "</action>"))
TAGS = ["<action>", "</action>", "<observation>", "</observation>"]
CALL = re.compile(r"<action>(.*?)</action>", re.DOTALL)

# What the turn loop writes around results. It ends a model's turn with nothing but the closing tag of its call.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{ message.content + '\n' }}
{%- elif message.role == 'tool' -%}{{ '<observation>' + message.content + '</observation>\n' }}
{%- elif message.tool_calls -%}
{%- for call in message.tool_calls -%}
{{ '<action>{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}</action>' }}
{%- endfor -%}
{%- else -%}{{ message.content + '<|im_end|>' }}
{%- endif -%}
{%- endfor -%}
"""


def tagged(row: dict) -> dict[str, str]:
    """A conversation as a prompt and what the model and its tools wrote.

    Example:
        {"prompt": "How warm is Oslo?\\n", "completion": "<action>..</action><observation>..</observation>\\n27"}
    """
    question, *turns = row["messages"]
    return {"prompt": f"{question['content']}\n", "completion": "".join(written(turn) for turn in turns)}


def written(message: dict) -> str:
    if message["role"] == "tool":
        return f"<observation>{message['content']}</observation>\n"
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return message["content"] + "".join(
        f'<action>{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}</action>' for call in calls
    )


def read_turn(tokenizer: PreTrainedTokenizerBase, text: str) -> ParsedTurn:
    """A parser for `run_rollouts`: what a turn in this format means."""
    found = CALL.search(text)
    if found is None:
        return ParsedTurn("answer", {"role": "assistant", "content": text.removesuffix(str(tokenizer.eos_token))})
    try:
        call = json.loads(found.group(1))
        name, arguments = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError) as error:
        return ParsedTurn("malformed", {"role": "assistant", "content": text}, reason=f"not a call: {error}")
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [function]}
    return ParsedTurn("calls", message, (ToolCall("", str(name), arguments),))
