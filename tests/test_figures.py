"""The figures of a rollout, read back from the SVG that they write."""

import re

import matplotlib
import pytest
import torch

from envmask_trl import completion_mask_from_env_mask, view
from envmask_trl.inspect.figures import draw_figures, draw_sequence, draw_training_path, positions
from tests.real_tokenizers import load
from tests.viewing import trajectory


@pytest.fixture(scope="module")
def tokenizer():
    return load("qwen3")


def words(draw, rollout, path):
    """What stands written in a figure, in drawing order."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        svg = draw(rollout, path).read_text(encoding="utf-8")
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_the_completion_mask_of_a_figure_is_the_one_that_trains(tokenizer):
    only = trajectory(tokenizer)
    shown = positions(view([only], tokenizer=tokenizer).rollouts[0])
    env_mask = [0] * len(only.prompt_ids) + list(only.env_mask)
    assert [position.mask for position in shown] == env_mask
    trained = completion_mask_from_env_mask(torch.tensor([env_mask]))[0].tolist()
    assert [position.predicts for position in shown] == [*trained, None]


def test_the_sequence_has_every_token_and_both_masks(tokenizer, tmp_path):
    only = trajectory(tokenizer, observation="$x^2$ costs $5")
    found = words(draw_sequence, view([only], tokenizer=tokenizer).rollouts[0], tmp_path / "new" / "sequence.svg")
    tokens, trained = len(only.prompt_ids) + len(only.completion_ids), sum(only.env_mask)
    # No token of the text is 0 or 1: those are the masks', and the last token has no next one.
    assert found.count("1") == 2 * trained and found.count("0") == 2 * (tokens - trained) - 1
    assert {"mul", "7", "&lt;|im_end|&gt;", "$", "env_mask", "completion mask"} <= {w.strip() for w in found}


def test_the_training_path_adds_up_to_the_loss_of_the_first_pass(tokenizer, tmp_path):
    only = trajectory(tokenizer)
    rollout = view([only], tokenizer=tokenizer, advantages=[2.0]).rollouts[0]
    found = words(draw_training_path, rollout, tmp_path / "path.svg")
    trained = sum(only.env_mask)  # mul _ 7 _ 6 E and It is _ 4 2 . E: 13, all of them drawn
    assert f"loss of what is drawn: sum {-2 * trained:+d} over {trained} trained positions, mean -2" in found
    assert "-5.5" in found  # the longest bar: log-probs are -0.5, -1.5, ... -5.5 in the first turn of six tokens


def test_a_row_that_a_policy_left_out_adds_nothing_and_a_row_without_scores_has_no_such_lane(tokenizer, tmp_path):
    row = view([trajectory(tokenizer)], tokenizer=tokenizer, advantages=[2.0]).rollouts[0].row
    rows = [{**row, "loss_mask": [0] * len(row["env_mask"])}, {**row, "logprobs": None, "advantage": None}]
    shown_view = view(rows, tokenizer=tokenizer)
    left_out, unscored = (words(draw_training_path, each, tmp_path / "path.svg") for each in shown_view.rollouts)
    assert "env_mask" in left_out and not any("loss" in word for word in left_out)
    assert left_out.count("1") == sum(row["env_mask"])  # env_mask still says who wrote it
    assert not any("loss" in word or "log-prob" in word for word in unscored)


def test_a_figure_is_written_as_png_too(tokenizer, tmp_path):
    rollout = view([trajectory(tokenizer)], tokenizer=tokenizer).rollouts[0]
    assert draw_sequence(rollout, tmp_path / "sequence.png").read_bytes().startswith(b"\x89PNG")


def test_figures_need_a_rollout_with_an_observation(tokenizer, tmp_path):
    row = view([trajectory(tokenizer)], tokenizer=tokenizer).rollouts[0].row
    alone = {**row, "sources": ["model" if source == "env" else source for source in row["sources"]]}
    with pytest.raises(ValueError, match="none of 1 rollouts has an observation; expected one in which a tool"):
        draw_figures(view([alone], tokenizer=tokenizer).rollouts, tmp_path)
