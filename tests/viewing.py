"""Rollouts to view, and how to read and use the page that shows them. Knows its format and its fields: no browser."""

import base64
import json
import re
import zlib

from envmask_trl import CallStatus, Segment, Source, StopReason, ToolResult, Trajectory, view
from envmask_trl.inspect.token_text import shown

READY = "document.documentElement?.dataset.milliseconds"  # set when the first rollout is drawn
RUN = "globalThis.hostile = true"
HOSTILE = f'</script><script>{RUN}</script><img src=x onerror="{RUN}">\' " & <!-- </span> $data {{}} ${{1}} \\u003c'
UNPRINTABLE = (
    "a\tb\r\u202e\x1b[2J\x00\u2028\ud800"  # tab, bidi override, terminal code, NUL, line separator, lone surrogate
)


def trajectory(tokenizer, *, asked="What is 7*6?", observation="42", turns=("mul 7 6", "It is 42."), **fields):
    """prompt, a model's turn, template, observation, template, a model's turn."""

    def ids(text):
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    first, last = (ids(f"{turn}<|im_end|>") for turn in turns)
    return Trajectory(
        segments=(
            Segment(Source.PROMPT, ids(asked)),
            Segment(Source.MODEL, first, tuple(-0.5 - position for position, _ in enumerate(first))),
            Segment(Source.TEMPLATE, ids("\n<|im_start|>user\n")),
            Segment(Source.ENV, ids(observation)),
            Segment(Source.TEMPLATE, ids("<|im_end|>\n")),
            Segment(Source.MODEL, last, tuple(-0.25 for _ in last)),
        ),
        **({"stop_reason": StopReason.ANSWERED} | fields),
    )


def talk(*, call="mul", arguments=None, result="42", answer="It is 42.", status=CallStatus.OK):
    """The fields of a trajectory that say what was said: a call, its result, an answer."""
    function = {"name": call, "arguments": {"a": 7} if arguments is None else arguments}
    return {
        "prompt": [{"role": "user", "content": "What is 7*6?"}],
        "messages": (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "function": function}]},
            {"role": "tool", "name": call, "tool_call_id": "call00000", "content": result},
            {"role": "assistant", "content": answer},
        ),
        "tool_results": (ToolResult("call00000", call, result, status, latency_s=0.25),),
    }


def eight_rollouts(tokenizer):
    """Rollouts 0 to 7: even ones call `mul`, and 6 fails at it; 1 is cut; rewards are 0.0 to 0.7; two to a step."""
    rollouts = []
    for number in range(8):
        said = talk(status=CallStatus.ERROR if number == 6 else CallStatus.OK) if number % 2 == 0 else {}
        reason = StopReason.LENGTH if number == 1 else StopReason.ANSWERED
        turns = ("mul 7 6", f"Answer number {number}.")
        rollouts.append(trajectory(tokenizer, turns=turns, stop_reason=reason, **said))
    scores, advantages = [{"correct": number / 10} for number in range(8)], [number - 4.0 for number in range(8)]
    shown_view = view(rollouts, tokenizer=tokenizer, rewards=scores, advantages=advantages)
    steps = [{**rollout.row, "step": number // 2} for number, rollout in enumerate(shown_view.rollouts)]
    return view(steps, tokenizer=tokenizer)


def expected_tokens(tokenizer, *trajectories):
    """(source, text, digit) of every token, prompt first."""
    return [
        (segment.source, shown(tokenizer.decode([token])), int(segment.source is Source.MODEL))
        for each in trajectories
        for segment in each.segments
        for token in segment.token_ids
    ]


def choose(tab, name, value):
    """Set a field of the filters as a hand would, and wait until the list has followed."""
    field = f"document.querySelector('[name={name}]')"
    tab.evaluate(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    tab.evaluate("new Promise(done => setTimeout(done, 250))")


class PageData:
    """The data of a page's HTML, unpacked."""

    def __init__(self, html):
        (packed,) = re.findall(r'id="data">([A-Za-z0-9+/=]*)</script>', html)
        lines = zlib.decompress(base64.b64decode(packed)).decode("ascii").split("\n")
        self.vocabulary, self.heads, *self.bodies = map(json.loads, lines)

    def tokens(self, number=0):
        """(source, text, digit) of every token of a rollout, prompt first."""
        body, texts = self.bodies[number], self.vocabulary["texts"]
        authors = [(source, mask) for source, _, mask, length in body["runs"] for _ in range(length)]
        prompt = [("prompt", texts[position], 0) for position in body["prompt"]]
        completion = zip(authors, body["completion"], strict=True)
        return prompt + [(source, texts[position], mask) for (source, mask), position in completion]
