"""What `check_template` finds in a template, said in plain words; each template here has one thing to be found."""

from dataclasses import FrozenInstanceError
from functools import cache

import pytest
from datasets import Dataset, concatenate_datasets

from envmask_trl.inspect.template_check import check_template, judge_template
from envmask_trl.inspect.template_verdict import FindingKind
from envmask_trl.training import prompt_roles

from .real_tokenizers import chat_template
from .tiny import CHAT_TEMPLATE, add, tiny_tokenizer, user

OPENING = "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
TURN = "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
SCHEMAS = "{%- if tools -%}\n{{ '<|im_start|>system\n' }}"


@cache
def tokenizer():
    return tiny_tokenizer()


def judged(template: str, **kwargs):
    return judge_template(tokenizer(), [add], template, **kwargs)


def changed(old: str, new: str) -> str:
    assert CHAT_TEMPLATE.count(old) == 1
    return CHAT_TEMPLATE.replace(old, new)


def the(verdict, kind: FindingKind):
    (finding,) = [finding for finding in verdict.findings if finding.kind is kind]
    return finding


def test_a_template_that_only_appends_has_no_findings(capsys):
    verdict = check_template(tokenizer(), [add])
    assert verdict.trains and verdict.appends_only and verdict.findings == ()
    between = "\\n<|im_start|>user\\n<tool_response>\\n...\\n</tool_response><|im_end|>\\n<|im_start|>assistant\\n"
    expected = f"chat template: trains, append-only\n  between two turns it writes '{between}', which is never trained"
    assert str(verdict) == expected and capsys.readouterr().out == expected + "\n"
    with pytest.raises(FrozenInstanceError):
        verdict.between = ""


def test_thinking_that_is_dropped_is_named_with_the_first_token_and_both_texts():
    """With Qwen3's own template: it trains, because history is never rendered again."""
    verdict = judged(chat_template("qwen3"))
    assert verdict.trains and not verdict.appends_only
    finding = the(verdict, FindingKind.THINKING_DROPPED)
    assert "when the user speaks again" in str(finding)
    assert "<think>" in finding.difference.before and "<tool_call>" in finding.difference.after
    held = tokenizer().apply_chat_template(
        [{"role": "user", "content": "How warm is Oslo?"}], tools=[add], add_generation_prompt=True, return_dict=False,
        chat_template=chat_template("qwen3"),
    )  # fmt: skip
    assert finding.difference.position > len(held)  # the probe's own tool is in the prompt too


def test_a_turn_that_is_written_differently_while_it_is_the_last_one():
    """Qwen3 writes an empty thinking block, but only in the last turn."""
    finding = the(judged(chat_template("qwen3")), FindingKind.LAST_TURN_BRANCH)
    assert "<think>" in finding.difference.before and "<think>" not in finding.difference.after


def test_a_tool_schema_that_moves_to_the_last_user_message():
    verdict = judged(
        changed(SCHEMAS, "{%- if false -%}\n{{ '' }}").replace(
            TURN,
            "{{ '<|im_start|>' + message.role + '\n' }}{% if message.role == 'user' and message == (messages | "
            "selectattr('role', 'equalto', 'user') | list | last) %}{{ tools | tojson }}{% endif %}"
            "{{ message.content or '' }}",
        )
    )
    assert verdict.trains and FindingKind.SCHEMA_MOVED in verdict.kinds
    assert "the tool schema moves when the user speaks again" in str(verdict)


def test_an_opening_that_the_written_turn_lacks():
    verdict = judged(changed(OPENING, OPENING.replace("assistant\n", "assistant\n(hm)\n")))
    finding = the(verdict, FindingKind.OPENING)
    assert verdict.trains and "(hm)" in finding.difference.before and "(hm)" not in finding.difference.after


def test_a_stop_token_that_is_not_the_models_refuses_and_says_which_there_are():
    end, start = tokenizer().convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    verdict = judge_template(tokenizer(), stop_token_ids={tokenizer().pad_token_id})
    finding = next(finding for finding in verdict.findings if finding.kind is FindingKind.STOP_TOKEN)
    assert not verdict.trains and str(verdict).startswith("chat template: refused\n  NOT OK: behind a call")
    assert "pass the one that ends the model's turn in stop_token_ids, or set it as eos_token: '</tool_call>' is" in (
        finding.sentence
    )
    assert f"'<|im_end|>' is {end}" in finding.sentence and f"'<|im_start|>' is {start}" in finding.sentence
    assert judge_template(tokenizer(), stop_token_ids={tokenizer().pad_token_id, end}).trains


def test_a_turn_that_ends_with_the_token_that_opens_the_next_message_trains():
    """GLM's models stop with <|observation|> or <|user|>; their template writes it as the next header."""
    other = tiny_tokenizer()
    other.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|observation|>", "<|assistant|>"]})
    stops = set(other.convert_tokens_to_ids(["<|user|>", "<|observation|>"]))
    verdict = judge_template(other, [add], chat_template("glm4moe"), stop_token_ids=stops)
    assert verdict.trains and verdict.between == "\n<tool_response>\n...\n</tool_response><|assistant|>"


def test_a_template_that_raises_on_a_users_question():
    verdict = judged("{{ raise_exception('no system message') }}")
    assert verdict.kinds == (FindingKind.RAISES,)
    assert "raises on a user's question: no system message; pass another chat_template" in str(verdict)
    for template, error in (("{{ 1 / 0 }}", "ZeroDivisionError"), ("{{ 'a'.index('b') }}", "substring not found")):
        assert judged(template).kinds == (FindingKind.RAISES,) and error in str(judged(template))


def test_inputs_on_which_a_template_raises_are_named():
    raising = "{%- if message.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}"
    verdict = judged(changed(TURN, raising + TURN))
    assert verdict.trains
    assert str(the(verdict, FindingKind.LIMITED_INPUT)) == (
        "the template raises on a system message: System role not supported"
    )


def test_no_tool_role_is_told_with_its_reason():
    raising = "{%- if message.role == 'tool' -%}{{ raise_exception('no tools here') }}{%- endif -%}"
    verdict = judged(changed("{%- if message.role == 'tool' -%}\n", raising + "{%- if message.role == 'tool' -%}\n"))
    assert "no tool role (it raises on one: no tools here); results are shown as a user's turn" in str(verdict)


def test_results_that_are_never_shown_are_refused():
    verdict = judged(
        "{% for m in messages %}{% if m.role == 'user' and loop.first %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert verdict.kinds == (FindingKind.NO_RESULTS,) and "use a template with a tool role" in str(verdict)


def test_calls_in_an_unknown_format_are_refused_with_the_remedy():
    verdict = judged(changed('\'<tool_call>\n{"name": "\'', '\'<tool_call>\n{"tool": "\''))
    assert verdict.kinds == (FindingKind.UNREADABLE_CALLS,) and "or pass `parser=`" in str(verdict)


def test_an_opening_in_ordinary_text_cannot_be_written_by_a_tool():
    """Each turn opens with "Assistant:", which is no token; a result that has it gets other ids."""
    other = changed(OPENING, "{%- if add_generation_prompt -%}{{ 'assistant:' }}{%- endif -%}").replace(
        "</tool_response>' }}\n{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\n' }}",
        "' }}\n{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '\n' }}",
    )
    assert FindingKind.FORGEABLE_TURN not in judged(other).kinds


def test_an_opening_of_single_character_tokens_can_be_written_and_is_refused():
    other = changed(OPENING, "{%- if add_generation_prompt -%}{{ 'ZQ:' }}{%- endif -%}").replace(
        "</tool_response>' }}\n{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\n' }}",
        "' }}\n{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '\n' }}",
    )
    verdict = judged(other)
    assert not verdict.trains and "use a template whose turns open with a control token" in str(verdict)


def test_a_template_that_never_shows_the_tools_is_told_and_trains():
    """A model was trained with tools that it was never shown, without a word: a system message may describe them."""
    verdict = judged(changed("{%- if tools -%}", "{%- if false -%}"))
    assert verdict.trains and verdict.kinds == (FindingKind.TOOLS_NOT_SHOWN,)
    assert "describe them, and how a call is written, in a system message" in str(verdict)
    only_beside_a_system_message = changed("{%- if tools -%}", "{%- if tools and messages[0].role == 'system' -%}")
    assert FindingKind.TOOLS_NOT_SHOWN not in judged(only_beside_a_system_message).kinds


def test_a_name_in_place_of_a_tokenizer_is_told_with_the_remedy():
    with pytest.raises(ValueError, match=r"tokenizer is 'gpt2', .*; write AutoTokenizer.from_pretrained\('gpt2'\)"):
        check_template("gpt2")


ONLY_USUAL = "{% for m in messages if m.role in ['system', 'user', 'assistant'] %}{{ m.content }}{% endfor %}"


def prompts(*last_roles):
    return Dataset.from_list([{"prompt": [*user("a"), {"role": role, "content": "b"}]} for role in last_roles])


def said_of_roles(dataset, monkeypatch, *, template=CHAT_TEMPLATE):
    said = []
    monkeypatch.setattr(prompt_roles.logger, "warning", said.append)
    prompt_roles.check_roles("train_dataset", dataset, tokenizer(), {"chat_template": template})
    return said


def test_a_role_that_the_template_leaves_out_is_refused_with_its_row(monkeypatch):
    """Qwen's templates skip a message of the role "human": the model was asked nothing."""
    apart = concatenate_datasets([prompts("user", "user"), prompts("system", "human")])
    for rows, number in ((apart, 3), (apart.select([3, 0]), 0)):
        with pytest.raises(
            ValueError, match=f"train_dataset has in row {number} a message of the role 'human', .*; re"
        ):
            said_of_roles(rows, monkeypatch, template=ONLY_USUAL)
    raising = ONLY_USUAL.replace(
        "{% for", "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{% for"
    )
    with pytest.raises(ValueError, match=r"role 'human', which the chat template does not show the model \(no\)"):
        said_of_roles(apart, monkeypatch, template=raising)


def test_a_role_that_the_template_writes_as_it_is_is_told(monkeypatch):
    (said,) = said_of_roles(prompts("user", "human"), monkeypatch)
    assert said.startswith("train_dataset has in row 1 a message of the role 'human', which the chat template does not")
    assert said_of_roles(prompts("user", "system", "tool"), monkeypatch) == []
    assert said_of_roles(Dataset.from_list([{"prompt": "a"}]), monkeypatch) == []


def test_a_prompt_that_ends_in_an_assistants_message_is_told(monkeypatch):
    """TRL and we open a new turn behind it; who meant it as the beginning of the turn would train something else."""
    for rows, number in (
        (prompts("user", "assistant"), 1),
        (prompts("assistant", "user", "assistant").select([1, 2]), 1),
    ):
        (said,) = said_of_roles(rows, monkeypatch)
        assert said.startswith(f"train_dataset has in row {number} a prompt that ends in an assistant's message")


def test_messages_without_any_template_are_refused(monkeypatch):
    plain = tiny_tokenizer()
    plain.chat_template = None
    with pytest.raises(ValueError, match=r"are messages, but the tokenizer has no chat template .*; set"):
        prompt_roles.check_roles("train_dataset", prompts("user"), plain, {})
