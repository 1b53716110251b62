"""What `run_rollouts` is given wrongly is one sentence before anything is played, and nothing given is ignored."""

import json

import numpy as np
import pytest
import torch

from envmask_trl import (
    CallStatus,
    ObservationEncoder,
    ParsedTurn,
    RolloutLimits,
    Sample,
    ScriptedSampler,
    StopReason,
    ToolCall,
    run_rollouts,
)
from envmask_trl.rollout.episodes import Episode, all_tools

from .scripted_turns import ANSWER, PROMPT, call, ids, play, text, tokenizer, weather


class EmptyRoom:
    """An environment that is falsy, as one with a length of 0 is."""

    def reset(self, **row):
        return None

    def __len__(self):
        return 0

    def look(self) -> str:
        """Look around."""
        return "nothing"


def reads_calls(turn: str) -> ParsedTurn:
    """A parser of JSON that does not care what it is given."""
    if not turn.startswith("{"):
        return ParsedTurn("answer", {"role": "assistant", "content": turn})
    function = json.loads(turn.removesuffix("<|im_end|>"))
    name, arguments = function["name"], function["arguments"]
    entry = {"type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [entry]}
    return ParsedTurn("calls", message, (ToolCall("", name, arguments),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": "How warm?"}, r"prompts is a single prompt, expected a list .*; write \[prompt\]"),
        ({"tokenizer": "gpt2"}, r"tokenizer is 'gpt2', expected .*; write AutoTokenizer.from_pretrained\('gpt2'\)"),
        ({"sampler": "gpt2"}, r"sampler is a str, expected an object .*KeptCacheSampler\(model, tokenizer\)"),
        ({"prompts": PROMPT}, r"prompts is a single prompt, expected a list .*; write \[prompt\]"),
        ({"prompts": [None]}, "prompt 0 is a NoneType, expected a text or a list"),
        ({"prompts": [[]]}, "prompt 0 is an empty list, expected a text or a list of at least one message"),
        ({"prompts": [[{"content": "x"}]]}, "prompt 0: message 0 has no role, expected a dict"),
        ({"prompts": [["x"]]}, "prompt 0: message 0 is a str, expected a dict"),
        ({"prompt_ids": [[1], [2]]}, "prompt_ids has 2 entries but there are 1 prompts"),
        ({"prompt_ids": []}, "prompt_ids has 0 entries but there are 1 prompts"),
        ({"prompt_ids": [[]]}, "prompt_ids of prompt 0 is empty"),
        ({"tools": weather}, r"tools is a function, expected a list of functions; write \[tool\]"),
        ({"tools": "weather"}, "tools is a str, expected a list of functions"),
        ({"tools": [{"name": "weather"}]}, "tool 0 is a dict, expected a function"),
        ({"rows": [{}]}, "rows are what new environments are reset with, but environments is no factory"),
        ({"environments": object()}, "environments is one object, which rollouts cannot share; pass its class"),
        ({"limits": {"max_turn_tokens": 3}}, r"limits is a dict, expected RolloutLimits\(...\)"),
        ({"parser": "hermes"}, "parser is a str, expected a function"),
        ({"parser": reads_calls, "tools": None}, "parser reads calls, but no rollout has a tool to call; pass tools"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5, expected a collection of token ids"),
        ({"stop_token_ids": [None]}, r"stop_token_ids is \[None\], expected a collection of token ids"),
    ],
)
def test_an_argument_of_which_no_rollout_could_be_made_is_named_before_anything_is_played(arguments, message):
    """One prompt in place of a list was played letter by letter; rows without a factory were ignored."""
    sampler = ScriptedSampler([[ids(ANSWER)]])
    given = {"prompts": [PROMPT], "tools": [weather], "tokenizer": tokenizer(), "sampler": sampler, **arguments}
    with pytest.raises(ValueError, match=message):
        run_rollouts(given.pop("prompts"), **given)
    assert sampler.seen == []


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for m in messages %}", "TemplateSyntaxError"),
    ],
)
def test_a_template_that_raises_on_a_prompt_is_named_with_the_prompt(template, message):
    """jinja's own error names neither the row nor the template."""
    with pytest.raises(ValueError, match=f"the chat template cannot show the prompt .*How warm.*: {message}"):
        play([ANSWER], template_kwargs={"chat_template": template})


@pytest.mark.parametrize("environments", [EmptyRoom, [EmptyRoom()]], ids=["factory", "instances"])
def test_an_environment_that_is_falsy_keeps_its_tools(environments):
    (row,) = play([call("look", "{}"), ANSWER], tools=(), environments=environments)
    assert [result.content for result in row.tool_results] == ["nothing"]


@pytest.mark.parametrize("turn", ['{"name": "weather", }', '{"arguments": {}}', '{"name": "wea'])
def test_a_turn_that_an_own_parser_cannot_read_is_answered_and_the_other_rollouts_go_on(turn):
    """An unguarded json.loads in a parser ended all rollouts."""
    good = '{"name": "weather", "arguments": {"city": "Oslo"}}<|im_end|>'
    first, second = play([turn + "<|im_end|>", ANSWER], [good, ANSWER], parser=reads_calls)
    assert first.tool_results[0].status is CallStatus.MALFORMED and "nothing was run" in text(first)
    assert first.stop_reason is StopReason.ANSWERED and second.tool_results[0].status is CallStatus.OK


def test_a_parser_that_returns_no_turn_is_named():
    with pytest.raises(ValueError, match="the parser returned a NoneType, expected a ParsedTurn"):
        play([ANSWER], parser=lambda turn: None)


def test_the_loop_ends_turns_where_the_sampler_does():
    """A model stops at more ids than the tokenizer's eos; no second closer is written behind such a turn."""

    class StopsAtTwo(ScriptedSampler):
        def __init__(self, scripts, stop_ids):
            super().__init__(scripts)
            self.stop_ids = stop_ids

    (other,) = ids("<|im_start|>")
    eos = tokenizer().eos_token_id
    scripts = [[(*ids(call())[:-1], other), ids(ANSWER)]]
    rows = [
        run_rollouts(
            [PROMPT], tokenizer=tokenizer(), sampler=StopsAtTwo(scripts, stop_ids), tools=[weather], **options
        )[0]
        for stop_ids, options in (({eos, other}, {}), (None, {"stop_token_ids": {eos, other}}))
    ]
    assert rows[0].completion_ids == rows[1].completion_ids
    behind = len(scripts[0][0])
    assert rows[0].completion_ids[behind] != eos


def test_a_parser_knows_the_tools_of_every_rollout():
    """Arguments written as bare text are typed by the schema of their own tool, not of the first rollout's."""

    def count(n: int) -> str:
        return "ok"

    episodes = [Episode(PROMPT, [weather]), Episode(PROMPT, [count, weather]), Episode(PROMPT, [])]
    assert all_tools(episodes) == [weather, count]


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (
            {"template_kwargs": {"enable_thinking": False}},
            {},
            "template_kwargs={'enable_thinking': False}, the prompts {}",
        ),
        (
            {},
            {"template_kwargs": {"enable_thinking": False}},
            "template_kwargs={}, the prompts {'enable_thinking': False}",
        ),
        ({"tools": [weather, print]}, {}, r"tools \['print', 'weather'\], the rollouts \['weather'\]"),
    ],
)
def test_an_encoder_under_another_template_than_the_prompts_is_refused(options, given, message):
    """Observations would be rendered by other rules than the conversation that they stand in."""
    encoder = ObservationEncoder(tokenizer(), stop_token_ids={tokenizer().eos_token_id}, **options)
    with pytest.raises(ValueError, match=message):
        play([call(), ANSWER], encoder=encoder, **given)


def test_a_sampler_that_returns_fewer_samples_than_contexts_is_named():
    class Short:
        def sample(self, contexts, max_new_tokens):
            return [Sample(ids(ANSWER), None, "stop")]

    with pytest.raises(ValueError, match="the sampler returned 1 samples for 2 contexts"):
        run_rollouts([PROMPT] * 2, tokenizer=tokenizer(), sampler=Short(), tools=[weather])
    with pytest.raises(ValueError, match="rollout 1 has no script, there are 1"):
        run_rollouts([PROMPT] * 2, tokenizer=tokenizer(), sampler=ScriptedSampler([[ids(ANSWER)]]), tools=[weather])


class Plays:
    """A sampler that returns what it was given."""

    def __init__(self, samples):
        self.samples = samples

    def sample(self, contexts, max_new_tokens):
        return self.samples


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_ids_of_prompts_and_turns_may_be_tensors_or_arrays(form):
    """As an engine gives them; the truth of an array was asked for, or a row was made of tensors."""
    turn = list(ids(ANSWER))
    sample = Sample(form(turn), form([-0.5] * len(turn)), "stop")
    (row,) = run_rollouts([PROMPT], tokenizer=tokenizer(), sampler=Plays([sample]), prompt_ids=form([[1, 2, 3]]))
    assert (row.prompt_ids, list(row.completion_ids), row.logprobs) == ((1, 2, 3), turn, (-0.5,) * len(turn))
    assert {type(token_id) for token_id in (*row.prompt_ids, *row.completion_ids)} == {int}


@pytest.mark.parametrize(
    ("ids_", "logprobs", "message"),
    [
        ((5, -1), None, "a sample has -1 among its ids"),
        ((5, None), None, "a sample has None among its ids"),
        ((5.0,), None, "a sample has 5.0 among its ids"),
        ([[5, 6]], None, r"a sample has \[5, 6\] among its ids"),
        ((5, 6), (-0.1,), "a sample has 2 ids but 1 log-probs"),
        ((), (-0.1,), "a sample has 0 ids but 1 log-probs"),
    ],
)
def test_a_sample_that_is_no_turn_is_named_where_it_is_made(ids_, logprobs, message):
    with pytest.raises(ValueError, match=message):
        Sample(ids_, logprobs, "stop")


def test_a_sampler_that_returns_nothing_is_named():
    with pytest.raises(ValueError, match="the sampler returned a NoneType, expected a list with one sample per"):
        run_rollouts([PROMPT], tokenizer=tokenizer(), sampler=Plays(None))


@pytest.mark.parametrize("reason", ["eos", "max_tokens", None])
def test_a_finish_reason_that_the_loop_does_not_know_is_refused(reason):
    """A turn cut by its budget under another word would be taken for a whole one, and its calls run."""
    with pytest.raises(ValueError, match=r"expected 'stop' .* or 'length'"):
        Sample((1,), None, reason)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_completion_length", None),
        ("max_completion_length", 12.5),
        ("max_completion_length", "12"),
        ("max_tool_calling_iterations", None),
        ("max_turn_tokens", True),
    ],
)
def test_a_limit_that_is_no_whole_number_is_named(name, value):
    with pytest.raises(ValueError, match=f"RolloutLimits.{name} is {value!r}, expected a whole number"):
        RolloutLimits(**{name: value})


@pytest.mark.parametrize("wrong", [{"sampler": None}, {"stop_token_ids": 5}])
def test_a_wrong_sampler_is_told_before_an_environment_is_made(wrong):
    def make():
        raise AssertionError("made")

    given = {"tokenizer": tokenizer(), "sampler": ScriptedSampler([[ids(ANSWER)]]), "environments": make, **wrong}
    with pytest.raises(ValueError, match=r"sampler is a NoneType|stop_token_ids is 5"):
        run_rollouts([PROMPT], **given)
