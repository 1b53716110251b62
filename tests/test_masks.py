"""From env_mask to the positions that are trained. Ids: 1-9 prompt, 10-18 model, 19 eos, 20-29 environment."""

import pytest
import torch

from envmask_trl import completion_mask_from_env_mask
from envmask_trl.masks import last_model_run, select

EOS = {19}


def trained(env_mask, token_ids=None, eos=None):
    ids = None if token_ids is None else torch.tensor([token_ids])
    return completion_mask_from_env_mask(torch.tensor([env_mask]), ids, eos)[0].tolist()


def test_position_t_says_whether_predicting_token_t_plus_one_is_trained():
    #       P  P  a  E  t  t  b  E
    mask = [0, 0, 1, 1, 0, 0, 1, 1]
    #                P→P P→a a→E E→t t→t t→b b→E
    assert trained(mask) == [0, 1, 1, 0, 0, 1, 1]


def test_the_first_token_of_the_response_and_the_first_after_each_observation_are_trained():
    #       p  a  b  E   t   a   E
    mask = [0, 1, 1, 1, 0, 1, 1]
    assert trained(mask) == [1, 1, 1, 0, 1, 1]


def test_what_follows_the_first_eos_of_the_last_turn_is_cut():
    ids_ = [1, 10, 19, 20, 11, 19, 12, 19]
    mask = [0, 1, 1, 0, 1, 1, 1, 1]
    assert trained(mask, ids_, EOS) == [1, 1, 0, 1, 1, 0, 0]


def test_an_eos_inside_an_observation_cuts_nothing():
    ids_ = [1, 10, 19, 20, 19, 21, 11, 19]
    mask = [0, 1, 1, 0, 0, 0, 1, 1]
    assert trained(mask, ids_, EOS) == [1, 1, 0, 0, 0, 1, 1]


def test_the_eos_that_ends_an_earlier_turn_cuts_nothing():
    ids_ = [1, 10, 19, 20, 11, 12]
    mask = [0, 1, 1, 0, 1, 1]
    assert trained(mask, ids_, EOS) == [1, 1, 0, 1, 1]


def test_every_stop_id_of_the_set_ends_the_last_turn():
    ids_ = [1, 10, 18, 11]
    assert trained([0, 1, 1, 1], ids_, {18, 19}) == [1, 1, 0]
    assert trained([0, 1, 1, 1], ids_, {19}) == [1, 1, 1]


def test_padding_whose_id_is_the_eos_is_neither_trained_nor_mistaken_for_an_end():
    #        p  a   E   t   b   E   _   _       pad == eos == 19
    ids_ = [1, 10, 19, 20, 11, 19, 19, 19]
    mask = [0, 1, 1, 0, 1, 1, 0, 0]
    assert trained(mask, ids_, EOS) == [1, 1, 0, 1, 1, 0, 0]


def test_a_row_without_a_sampled_token_stays_empty():
    assert trained([0, 0, 0], [1, 19, 20], EOS) == [0, 0]


def test_the_last_model_run_is_found_per_row():
    mask = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    assert last_model_run(mask).int().tolist() == [[0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0] * 6]


def test_the_dtype_is_kept_and_the_input_is_not_changed():
    mask = torch.tensor([[0, 1, 1, 1]])
    out = completion_mask_from_env_mask(mask, torch.tensor([[1, 19, 10, 11]]), EOS)
    assert out.dtype == mask.dtype and mask.tolist() == [[0, 1, 1, 1]] and out.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("value", [2, -1])
def test_a_mask_value_that_is_a_weight_is_refused(value):
    with pytest.raises(ValueError, match=f"env_mask holds {value}, expected only 0"):
        completion_mask_from_env_mask(torch.tensor([[0, value]]))


def test_rows_without_a_token_have_an_empty_mask():
    empty = torch.zeros(1, 0, dtype=torch.long)
    assert completion_mask_from_env_mask(empty, empty, EOS).shape == (1, 0)


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 3\) but token_ids \(1, 2\)"):
        completion_mask_from_env_mask(torch.tensor([[0, 1, 1]]), torch.tensor([[1, 2]]), EOS)
    with pytest.raises(ValueError, match=r"expected \[batch, tokens\]"):
        completion_mask_from_env_mask(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="env_mask is a list, expected a tensor"):
        completion_mask_from_env_mask([[0, 1]])
    with pytest.raises(ValueError, match="eos_token_ids is 19, expected a collection"):
        completion_mask_from_env_mask(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]), 19)
    with pytest.raises(ValueError, match=r"eos_token_ids is \[None\], expected a collection"):
        completion_mask_from_env_mask(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]), [None])
    with pytest.raises(ValueError, match="only one of"):
        completion_mask_from_env_mask(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]))


def test_selecting_removes_poison_that_multiplying_would_keep():
    values = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]])
    keep = torch.tensor([[1, 0], [0, 1]])
    assert select(values, keep).tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert (values * keep).isnan().any()


def test_a_value_per_row_is_kept_where_its_row_keeps_anything():
    values = torch.tensor([[3.0], [float("nan")]])
    assert select(values, torch.tensor([[0, 1], [0, 0]])).tolist() == [[3.0], [0.0]]


@pytest.mark.parametrize("eos", [[19, 18], range(18, 20), torch.tensor([19]), {19: "E"}.keys(), {19, 2**40}, {19, -1}])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_the_end_is_found_whatever_holds_the_stop_ids_and_the_tokens(dtype, eos):
    ids_ = torch.tensor([[1, 10, 19, 20, 11, 19, 12]], dtype=dtype)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1]])
    assert completion_mask_from_env_mask(mask, ids_, eos).tolist() == [[1, 1, 0, 1, 1, 0]]


def test_stop_ids_from_a_generator_cut_as_a_list_does():
    """It was read up while it was checked, and then nothing was cut."""
    mask, ids_ = torch.tensor([[0, 1, 1]]), torch.tensor([[1, 19, 10]])
    assert completion_mask_from_env_mask(mask, ids_, (token for token in [19])).tolist() == [[1, 0]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.float16, torch.bfloat16])
def test_every_dtype_of_a_mask_gives_the_same_positions(dtype):
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1]], dtype=dtype)
    ids_ = torch.tensor([[1, 10, 19, 20, 11, 19, 12]])
    out = completion_mask_from_env_mask(mask, ids_, EOS)
    assert out.dtype == dtype and out.int().tolist() == [[1, 1, 0, 1, 1, 0]]


@pytest.mark.parametrize("eos", ["19", 19.0, torch.tensor(19), [19.5], [[19]]])
def test_stop_ids_that_are_no_ids_are_named(eos):
    with pytest.raises(ValueError, match=r"eos_token_ids is .*, expected a collection of token ids"):
        completion_mask_from_env_mask(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]), eos)


def test_ids_that_are_no_tensor_are_named():
    with pytest.raises(ValueError, match="token_ids is a list, expected a tensor"):
        completion_mask_from_env_mask(torch.tensor([[0, 1]]), [[1, 2]], EOS)
