"""What a user's own rollout function returns is used as it is, or refused: no mask and no score goes astray."""

import numpy
import pytest
import torch

from .test_trainer_environments import make_trainer, rollout
from .tiny import tiny_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
EOS = tiny_tokenizer().eos_token_id


def trained(tmp_path, reward=lambda completions, **_: [0.0, 1.0, 0.0, 1.0], **columns):
    """The mask of what is trained, of each row; a column that is None is left out."""

    def play(prompts, trainer):
        return {name: rows for name, rows in rollout(prompts, trainer, **columns).items() if rows is not None}

    trainer = make_trainer(tmp_path, reward, tools=None, rollout_func=play)
    masks, scored_model = [], trainer.scored_model

    def noting(model):
        masks.extend(trainer.trained.tolist())
        return scored_model(model)

    trainer.scored_model = noting
    trainer.train()
    return masks


@pytest.mark.parametrize("name", ["tool_mask", "loss_mask", "action_mask", "response_mask", "is_mine"])
@pytest.mark.parametrize("as_kind", [list, torch.tensor])
def test_a_mask_under_another_name_is_refused_and_not_taken_for_a_score(name, as_kind, tmp_path):
    with pytest.raises(ValueError, match=f"returned no env_mask, and in '{name}' a 0 or 1 for each token"):
        trained(tmp_path, env_mask=None, **{name: as_kind([[1, 0, 1]] * 4)})


def test_a_mask_is_obeyed_behind_an_end_of_turn_too(tmp_path):
    """Two turns without anything between them, as where a model refines what it wrote."""
    turns = {"completion_ids": [[10, EOS, 11, EOS]] * 4, "logprobs": [[-0.1] * 4] * 4}
    assert trained(tmp_path, **turns, env_mask=[[1, 1, 1, 1]] * 4) == [[1, 1, 1, 1]] * 4


def test_without_a_mask_padding_behind_the_end_is_not_trained(tmp_path):
    padded = {"completion_ids": [[10, EOS, EOS, EOS]] * 4, "logprobs": [[-0.1] * 4] * 4}
    assert trained(tmp_path, **padded, env_mask=None) == [[1, 1, 0, 0]] * 4


@pytest.mark.parametrize("as_kind", [list, tuple, torch.tensor, numpy.array])
def test_each_row_is_rewarded_with_its_own_entry_of_a_column(as_kind, tmp_path):
    seen = []

    def reward(completions, score, setting, **_):
        seen.extend(zip(score, setting, strict=True))
        return score

    trained(tmp_path, reward, score=as_kind([0.0, 1.0, 2.0, 3.0]), setting="strict")
    assert seen == [(float(n), "strict") for n in range(4)]


def test_a_column_of_lists_of_one_number_beside_completions_of_one_token_is_no_mask(tmp_path):
    single = {"completion_ids": [[EOS]] * 4, "logprobs": [[-0.1]] * 4, "env_mask": None}
    assert trained(tmp_path, **single, passed=[[0], [1], [0], [1]]) == [[1]] * 4


@pytest.mark.parametrize("entries", [3, 5])
def test_a_column_of_another_length_is_named(entries, tmp_path):
    with pytest.raises(ValueError, match=f"{entries} entries in 'score' for 4 prompts; return one for each"):
        trained(tmp_path, score=[0.5] * entries)
