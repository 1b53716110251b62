"""10,000 generated samples with hostile observations: the mask is the truth, or the row is dropped with a reason."""

import random
from collections import Counter

import pytest

from envmask_trl import mask_observations
from envmask_trl.sft.parts import Reason
from envmask_trl.sft.tag_format import FORMATS

from .tiny import tiny_tokenizer

SAMPLES = 10_000
BATCH = 500
SEPARATORS = ("", " ", "\n", "\n\n", "  \n")
HARMLESS = (
    "7 degrees",
    "",
    " ",
    "grå \N{GRINNING FACE}",
    '{"t": 7, "s": "a\\"b"}',
    "1 < 2 > 0 && a</b>",
    "观察 7",
    "x" * 60,
)
CUT_BYTES = (
    "\N{GRINNING FACE}".encode()[:3].decode("utf-8", "replace"),
    "å".encode()[:1].decode("utf-8", "surrogateescape"),
)
CONTROL = ("<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<tool_call>")
WORDS = ("I look.", "so\nwhat", "a < b", "`code`", "é\N{COMBINING ACUTE ACCENT}", "2 > 1")


def hostile(rng, fmt):
    """An observation's content, and whether only somebody who knows the observations can read the text."""
    opening, closing = fmt.observation
    other = [text for text in fmt.texts if text not in fmt.observation]
    tags = [opening, closing or "", *other]
    tag = rng.choice(tags)
    nested = f"{opening} inner {closing or ''}"
    kinds = {
        "harmless": rng.choice(HARMLESS),
        "control": rng.choice(CONTROL),
        "bytes": rng.choice(CUT_BYTES),
        "tag": f"see {tag} there",
        "tag in a line": f"see\n{tag} there",
        "code": f"```\nprint('{tag}')\n```",
        "nested": nested,
        "unclosed": f"a {opening} b",
        "closed early": f"a {closing or opening} b",
        "near": f"a {opening.upper()} b",
        "turn": f"a{closing or ''}\n{turn(rng, fmt, 'call')}\n{opening} b",
    }
    kind = rng.choice(list(kinds))
    return kinds[kind], kind == "turn"


def turn(rng, fmt, kind):
    """What a model writes in one turn; it always begins with a thought."""
    (opens_thought, closes_thought), (opens, closes) = fmt.thought, getattr(fmt, kind)
    thought, said = (rng.choice(WORDS).replace("\n", " ") for _ in range(2))
    return f"{opens_thought} {thought}{closes_thought or ''}\n{opens} {said}{closes or ''}"


def sample(rng):
    """A format, a completion, its observations, and the runs that the model (True) and the environment wrote."""
    name = rng.choice(list(FORMATS))
    fmt = FORMATS[name]
    opening, closing = fmt.observation
    runs, contents, needs_known = [], [], False
    for _ in range(rng.randint(0, 3)):
        content, full_forgery = hostile(rng, fmt)
        needs_known |= full_forgery
        contents.append(content)
        before = "\n" if closing is None else rng.choice(SEPARATORS)
        behind = "\n" if closing is None else rng.choice(SEPARATORS)
        runs += [(True, turn(rng, fmt, "call")), (False, f"{before}{opening}{content}{closing or ''}{behind}")]
    runs.append((True, turn(rng, fmt, "answer")))
    return name, runs, contents, needs_known or rng.random() < 0.3


def samples(seed):
    """Samples of one format and one sort of columns together, as `datasets.map` gets them."""
    rng, groups = random.Random(seed), {}
    for _ in range(SAMPLES):
        name, runs, contents, is_known = sample(rng)
        groups.setdefault((name, is_known), []).append((runs, contents))
    for (name, is_known), rows in groups.items():
        for start in range(0, len(rows), BATCH):
            yield name, is_known, rows[start : start + BATCH]


def test_the_mask_of_every_row_that_is_kept_is_the_truth_and_every_other_has_a_reason():
    tokenizer = tiny_tokenizer()
    kept, dropped = Counter(), Counter()
    for name, is_known, rows in samples(seed=0):
        batch = {"prompt": ["Q: "] * len(rows), "completion": ["".join(text for _, text in runs) for runs, _ in rows]}
        batch |= {"observations": [contents for _, contents in rows]} if is_known else {}
        out = mask_observations(batch, tokenizer=tokenizer, tags=name, keep_problems=True)
        for (runs, _), ids, labels, problem in zip(rows, out["input_ids"], out["labels"], out["problem"], strict=True):
            if problem:
                assert Reason(problem.partition(": ")[0]) and ids == labels == []
                dropped[problem.partition(": ")[0]] += 1
                continue
            kept[name] += 1
            assert spelled(tokenizer, ids, labels) == expected(runs, FORMATS[name]), runs
    assert kept.total() + dropped.total() == SAMPLES
    assert min(kept[name] for name in FORMATS) > 500, kept
    assert {"unbalanced_tags", "not_a_turn", "near_miss", "text"} <= set(dropped), dropped
    print(f"kept {kept.total()} {dict(kept)}, dropped {dict(dropped)}")


def expected(runs, fmt):
    """The runs as a reader of ids sees them: the prompt and what follows it, white space on the observation's side."""
    end = "<|im_end|>" if fmt.ends_with_eos else ""
    return [(False, "Q: "), *runs[:-1], (True, runs[-1][1] + end)]


def spelled(tokenizer, ids, labels):
    runs = []
    for token, label in zip(ids, labels, strict=True):
        is_learned = label != -100
        assert not is_learned or label == token
        if not runs or runs[-1][0] != is_learned:
            runs.append((is_learned, []))
        runs[-1][1].append(token)
    return [(is_learned, tokenizer.decode(run)) for is_learned, run in runs]


@pytest.mark.parametrize("name", ["search_r1", "thought_action"])
def test_the_whole_encoding_finds_the_same_observations_or_says_that_a_token_spans_the_boundary(name):
    tokenizer = tiny_tokenizer()
    rng = random.Random(name)
    rows = [(runs, contents) for fmt, runs, contents, _ in (sample(rng) for _ in range(600)) if fmt == name]
    batch = {"prompt": ["Q: "] * len(rows), "completion": ["".join(text for _, text in runs) for runs, _ in rows]}
    batch["observations"] = [contents for _, contents in rows]
    options = {"tokenizer": tokenizer, "tags": name, "keep_problems": True}
    whole, pieces = (mask_observations(batch, encoding=encoding, **options) for encoding in ("whole", "pieces"))
    compared = 0
    for row, problem in enumerate(whole["problem"]):
        if problem or pieces["problem"][row]:
            continue
        compared += 1
        one, other = (spelled(tokenizer, out["input_ids"][row], out["labels"][row]) for out in (whole, pieces))
        assert [text.strip() for _, text in one] == [text.removesuffix("<|im_end|>").strip() for _, text in other]
    assert compared > 100
