"""Fitting to a length: the prompt is kept, every parallel column is cut at the same place, text follows the ids."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from envmask_trl import Segment, Source, StopReason, Trajectory, pack_rollouts
from envmask_trl.inspect.records import rollout_columns


class Letters:
    """A tokenizer whose id n is the byte n; 0 is a control token. Decodes as a byte-level tokenizer does."""

    def decode(self, token_ids, skip_special_tokens=False):
        assert all(type(token_id) is int for token_id in token_ids)
        if skip_special_tokens:
            token_ids = [token for token in token_ids if token]
        return bytes(token_ids).decode("utf-8", errors="replace")


def ids(text: str) -> list[int]:
    return list(text.encode())


def pack(prompt, completion, mask, limit, **columns):
    batch = {"prompt_ids": [prompt], "completion_ids": [completion], "env_mask": [mask], **columns}
    return {
        name: values[0] for name, values in pack_rollouts(batch, max_total_length=limit, tokenizer=Letters()).items()
    }


#                a    b   E   t   t   c   E
COMPLETION = [*ids("ab"), 0, *ids("tt"), *ids("c"), 0]
MASK = [1, 1, 1, 0, 0, 1, 1]


def test_an_exact_fit_cuts_nothing():
    row = pack(ids("pp"), COMPLETION, MASK, 9)
    assert row["completion_ids"] == COMPLETION and row["env_mask"] == MASK and not row["unfinished"]
    assert row["completion_text"] == "abttc" and row["model_text"] == "ab\nc"


def test_a_cut_in_the_middle_of_an_answer_keeps_mask_logprobs_and_turns_in_line():
    row = pack(ids("pp"), COMPLETION, MASK, 8, logprobs=[[-0.1] * 7], turn_index=[[0, 0, 0, -1, -1, 1, 1]])
    assert row["completion_ids"] == COMPLETION[:6]
    assert row["env_mask"] == [1, 1, 1, 0, 0, 1]
    assert row["logprobs"] == [-0.1] * 6
    assert row["turn_index"] == [0, 0, 0, -1, -1, 1]
    assert row["unfinished"] and row["model_text"] == "ab\nc"


def test_a_cut_in_the_middle_of_an_observation_leaves_no_text_that_is_not_trained_or_seen():
    row = pack(ids("pp"), COMPLETION, MASK, 6)
    assert row["env_mask"] == [1, 1, 1, 0]
    assert row["completion_text"] == "abt" and row["model_text"] == "ab" and row["unfinished"]


def test_a_cut_in_the_middle_of_a_character_shows_in_the_text_as_it_does_in_the_ids():
    euro = ids("€")  # three bytes
    row = pack(ids("p"), [*ids("a"), *euro], [1, 1, 1, 1], 4)
    assert row["completion_ids"] == [*ids("a"), *euro[:2]]
    assert row["completion_text"] == Letters().decode(row["completion_ids"])


def test_a_prompt_over_the_limit_is_cut_on_the_left_and_its_completion_dropped_whole():
    row = pack(ids("abcdef"), COMPLETION, MASK, 4, logprobs=[[-0.1] * 7])
    assert row["prompt_ids"] == ids("cdef") and row["prompt_length"] == 4
    assert row["completion_ids"] == [] and row["env_mask"] == [] and row["logprobs"] == []
    assert row["unfinished"] and row["completion_text"] == "" and row["model_text"] == ""


def test_a_prompt_that_fills_the_limit_is_kept_whole():
    row = pack(ids("abcd"), COMPLETION, MASK, 4)
    assert row["prompt_ids"] == ids("abcd") and row["completion_ids"] == [] and row["unfinished"]


def test_the_prompt_length_is_that_of_the_prompt_also_when_the_model_wrote_nothing():
    row = pack(ids("pp"), ids("tt"), [0, 0], 10)
    assert row["prompt_length"] == 2 and row["model_text"] == ""


def test_a_row_that_was_unfinished_stays_so():
    assert pack(ids("p"), ids("a"), [1], 9, unfinished=[True])["unfinished"] is True


def test_control_tokens_can_be_kept_in_the_text():
    batch = {"prompt_ids": [[1]], "completion_ids": [[97, 0]], "env_mask": [[1, 1]]}
    out = pack_rollouts(batch, max_total_length=9, tokenizer=Letters(), skip_special_tokens=False)
    assert out["completion_text"] == ["a\x00"]


def test_it_is_a_datasets_map_function():
    dataset = Dataset.from_dict(
        {"prompt_ids": [[1, 2], [3]], "completion_ids": [[97, 98], [99]], "env_mask": [[1, 0], [1]], "answer": [5, 6]}
    )
    mapped = dataset.map(pack_rollouts, batched=True, fn_kwargs={"max_total_length": 3, "tokenizer": Letters()})
    assert mapped["completion_ids"] == [[97], [99]]
    assert mapped["unfinished"] == [True, False] and mapped["answer"] == [5, 6]
    assert mapped["model_text"] == ["a", "c"] and mapped["prompt_length"] == [2, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"env_mask": [[1], [1]]}, "row 0: env_mask has 1 values but completion_ids has 2"),
        ({"env_mask": [[1, 1], [1, 1]]}, "row 1: env_mask has 2 values but completion_ids has 1"),
        ({"env_mask": [[1, 2], [1]]}, "row 0: env_mask holds 2, expected only 0"),
        ({"logprobs": [[-0.1, -0.1], [-0.1, -0.2]]}, "row 1: logprobs has 2 values but completion_ids has 1"),
        ({"logprobs": [[-0.1, -0.1], None]}, "row 1: logprobs has nothing but completion_ids has 1"),
        ({"env_mask": [[1, 1]]}, "column env_mask has 1 rows but completion_ids has 2"),
        ({"completion_ids": [[10, 11], None]}, "row 1: completion_ids is None, expected a list of token ids"),
        ({"prompt_ids": [None, [1]]}, "row 0: prompt_ids is None, expected a list of token ids"),
        ({"env_mask": [[1, None], [1]]}, "row 0: env_mask holds None, expected only 0"),
        ({"completion_ids": [[10, None], [10]]}, "row 0: completion_ids holds None, expected only token ids"),
        ({"completion_ids": [[10, 11.0], [10]]}, "row 0: completion_ids holds 11.0, expected only token ids"),
        ({"completion_ids": [["a", "b"], [10]]}, "row 0: completion_ids holds 'a', expected only token ids"),
        ({"completion_ids": [[10, -100], [10]]}, "row 0: completion_ids holds -100, expected only token ids"),
        ({"completion_ids": [[[10], [11]], [10]]}, r"row 0: completion_ids holds \[10\], expected only token ids"),
        ({"completion_ids": [{10, 11}, [10]]}, r"row 0: completion_ids is {10, 11}, expected a list of token ids"),
        ({"prompt_ids": [[1], [True]]}, "row 1: prompt_ids holds True, expected only token ids"),
        ({"env_mask": ["11", [1]]}, "row 0: env_mask holds '1', expected only 0"),
    ],
)
def test_columns_that_cannot_be_one_rollout_are_refused_by_row_column_and_length(columns, message):
    batch = {"prompt_ids": [[1], [1]], "completion_ids": [[10, 11], [10]], "env_mask": [[1, 1], [1]], **columns}
    with pytest.raises(ValueError, match=message):
        pack_rollouts(batch, max_total_length=9)


@pytest.mark.parametrize("form", ["torch", "numpy"])
@pytest.mark.parametrize("length", [2, 3], ids=["ragged", "rectangular"])
def test_rows_of_tensors_and_arrays_are_packed_as_lists_are(form, length):
    """A data set in another format gave lists of tensors, which no tokenizer decodes."""
    completions = [[97, 98, 99], [100, 101, 102][:length]]
    columns = {"prompt_ids": [[1, 2], [3]], "completion_ids": completions, "env_mask": [[1, 0, 1], [1, 0, 1][:length]]}
    dataset = Dataset.from_dict(columns).with_format(form)
    packed = pack_rollouts(dataset[:], max_total_length=4, tokenizer=Letters())
    assert packed == pack_rollouts(columns, max_total_length=4, tokenizer=Letters())
    assert packed["completion_ids"][0] == [97, 98] and type(packed["completion_ids"][0][0]) is int


@pytest.mark.parametrize("limit", [np.int64(4), torch.tensor(4).item()])
def test_a_limit_may_be_any_whole_number(limit):
    assert pack(ids("pp"), COMPLETION, MASK, limit)["env_mask"] == [1, 1]


def test_no_column_of_saved_rollouts_falls_out_of_line():
    segments = (Segment(Source.PROMPT, (1,)), Segment(Source.MODEL, (97,)), Segment(Source.ENV, (98, 99)))
    row = Trajectory((*segments, Segment(Source.MODEL, (100,))), StopReason.ANSWERED)
    packed = pack_rollouts(rollout_columns([row]) | {"loss_mask": [[1, 0, 0, 1]]}, max_total_length=3)
    assert packed["sources"] == [["model", "env"]] and packed["loss_mask"] == [[1, 0]]
    assert packed["completion_ids"] == [[97, 98]] and packed["turn_index"] == [[0, -1]]


def test_a_column_that_looks_parallel_and_is_not_named_is_said_when_a_row_is_cut():
    batch = {"prompt_ids": [[1]], "completion_ids": [[97, 98]], "env_mask": [[1, 1]], "advantages": [[0.5, 0.7]]}
    with pytest.warns(UserWarning, match="column advantages has a number per completion token but is not cut"):
        assert pack_rollouts(batch, max_total_length=2)["advantages"] == [[0.5, 0.7]]
    assert pack_rollouts(batch, max_total_length=3)["advantages"] == [[0.5, 0.7]]  # nothing is cut: nothing to say
    cut = pack_rollouts(batch, max_total_length=2, parallel_columns=["advantages"])
    assert cut["advantages"] == [[0.5]]


def test_a_parallel_column_that_is_not_there_is_named():
    batch = {"prompt_ids": [[1]], "completion_ids": [[97, 98]], "env_mask": [[1, 1]], "advantages": [[0.5, 0.7]]}
    with pytest.raises(ValueError, match=r"parallel_columns names \['advantage'\], which the batch does not have"):
        pack_rollouts(batch, max_total_length=2, parallel_columns=["advantage"])


@pytest.mark.parametrize("limit", [None, 2.5, True, 0, float("nan"), "9"])
def test_a_limit_that_is_no_number_of_tokens_is_named(limit):
    batch = {"prompt_ids": [[1]], "completion_ids": [[10]], "env_mask": [[1]]}
    with pytest.raises(ValueError, match="expected a whole number of at least 1 token"):
        pack_rollouts(batch, max_total_length=limit)


def test_a_parallel_column_given_as_a_text_is_refused_and_not_left_uncut():
    batch = {"prompt_ids": [[1]], "completion_ids": [[10, 11]], "env_mask": [[1, 1]], "logprobs": [[-0.1, -0.2]]}
    with pytest.raises(ValueError, match="parallel_columns is 'logprobs', expected a list of names"):
        pack_rollouts(batch, max_total_length=2, parallel_columns="logprobs")


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match=r"misses the columns \['env_mask'\]"):
        pack_rollouts({"prompt_ids": [[1]], "completion_ids": [[10]]}, max_total_length=9)


def test_an_empty_batch_stays_empty():
    assert pack_rollouts({"prompt_ids": [], "completion_ids": [], "env_mask": []}, max_total_length=9)["env_mask"] == []
