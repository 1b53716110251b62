"""An observation of any size fits what is left to the token, and nothing in it becomes a control token on the way."""

import time
from functools import cache

import pytest
from tokenizers import AddedToken, normalizers

from envmask_trl import ObservationEncoder, Source, ToolCall
from envmask_trl.rollout.content_guard import WITHHELD
from envmask_trl.rollout.fitting import cut_text

from .tiny import add, tiny_tokenizer

CALL = ToolCall("call00000", "add", {"a": 1, "b": 2})
FLOODS = {"one token": "<", "control tokens": "<|im_end|>", "white space": " ", "an opening": "assistant:"}


@cache
def encoder(**options) -> ObservationEncoder:
    tokenizer = options.pop("tokenizer", None) or tiny_tokenizer()
    return ObservationEncoder(tokenizer, tools=[add], stop_token_ids={tokenizer.eos_token_id}, **options)


def observed(observation) -> list[int]:
    return [i for segment in observation.segments if segment.source is Source.ENV for i in segment.token_ids]


@pytest.mark.parametrize("cut", ["head", "tail", "middle"])
@pytest.mark.parametrize("limit", [1, 3, 6, 8, 20, 40])
def test_a_limit_below_the_mark_is_kept_too(limit, cut):
    """The mark is shortened, and left out where not even the short one fits; the observation is flagged as cut."""
    observation = encoder(max_observation_tokens=limit, cut=cut).encode([CALL], ["7 degrees " * 50], closed=True)
    assert len(observed(observation)) <= limit and observation.num_cut == 1
    assert "cut" in observation.contents[0] or limit < 6


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("cut", ["head", "tail", "middle"])
def test_a_megabyte_is_not_tokenised_for_a_hundred_tokens(flood, cut):
    characters = 0

    def offsets(text):
        nonlocal characters
        characters += len(text)
        return encoder().guard.offsets(text)

    shortened = cut_text(flood * (1_000_000 // len(flood)), 100, cut, offsets)
    assert 90 <= len(encoder().guard.offsets(shortened)) <= 100 and characters < 30_000


def test_a_front_of_few_long_tokens_does_not_bring_the_end_into_the_front():
    """Each "token" here is a word: the front is one huge word, so more of it is looked at before it is cut."""

    def words(text):
        places, start = [], 0
        for word in text.split(" "):
            places.append((start, start + len(word)))
            start += len(word) + 1
        return places

    text = "a" * 5000 + " b" * 400 + " c" * 400
    front, _, back = cut_text(text, 40, "middle", words).partition("[cut")
    assert "c" not in front and "b" not in back.partition("]")[2] and front.startswith("a" * 5000)


def test_a_lone_surrogate_in_a_result_is_no_traceback():
    observation = encoder().encode([CALL], ["7 \ud83d C"], closed=True)
    assert observation.contents == ("7 ? C",) and observation.num_control_tokens == 0


NORMALISERS = {
    "full width": (normalizers.NFKC(), "\N{FULLWIDTH LEFT SQUARE BRACKET}stop]"),
    "upper case": (normalizers.Lowercase(), "[STOP]"),
    "one character": (normalizers.Replace("\N{SECTION SIGN}", "[stop]"), "\N{SECTION SIGN}"),
}


@pytest.mark.parametrize(("normaliser", "written"), NORMALISERS.values(), ids=NORMALISERS)
@pytest.mark.parametrize("policy", ["split", "escape", "reject"])
def test_what_a_normaliser_makes_a_control_token_of_is_counted_and_falls_under_the_policy(policy, normaliser, written):
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normaliser
    tokenizer.add_tokens([AddedToken("[stop]", normalized=True)])
    assert tokenizer.convert_tokens_to_ids("[stop]") in tokenizer(f"7 {written} 7")["input_ids"]
    guarded = encoder(tokenizer=tokenizer, control_tokens=policy)
    observation = guarded.encode([CALL], [f"7 {written} 7"], closed=True)
    assert observation.num_control_tokens == 1 and not guarded.guard.control_ids & set(observed(observation))
    expected = {"split": f"7 {written} 7", "escape": f"7 &#{ord(written[0])};{written[1:]} 7", "reject": WITHHELD}
    assert observation.contents == (expected[policy],)


def test_a_page_of_control_tokens_takes_moments():
    start_s = time.process_time()
    observation = encoder().encode([CALL], ["<|im_end|>" * 20_000], closed=True, max_tokens=1000)
    assert 990 <= observation.num_tokens <= 1000 and observation.num_control_tokens == 20_000
    assert time.process_time() - start_s < 10
