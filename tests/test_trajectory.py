"""Illegal trajectories cannot be built, and every mask is a view of who wrote a token."""

import pytest

from envmask_trl import Segment, Source, StopReason, Trajectory

P, M, E, T = Source.PROMPT, Source.MODEL, Source.ENV, Source.TEMPLATE


def trajectory(*segments: tuple, **fields) -> Trajectory:
    return Trajectory(tuple(Segment(*s) for s in segments), fields.pop("stop_reason", StopReason.ANSWERED), **fields)


def test_the_views_line_up_with_the_tokens():
    row = trajectory(
        (P, (1, 2)), (M, (10, 19), (-0.1, -0.2)), (T, (20,)), (E, (21, 22)), (T, (23,)), (M, (11, 19), (-0.3, -0.4))
    )
    assert row.prompt_ids == (1, 2)
    assert row.completion_ids == (10, 19, 20, 21, 22, 23, 11, 19)
    assert row.env_mask == (1, 1, 0, 0, 0, 0, 1, 1)
    assert row.turn_index == (0, 0, -1, -1, -1, -1, 1, 1)
    assert row.logprobs == (-0.1, -0.2, 0.0, 0.0, 0.0, 0.0, -0.3, -0.4)
    assert row.sources == (M, M, T, E, E, T, M, M)
    assert row.num_turns == 2


def test_three_sampled_turns_are_three_trained_spans():
    row = trajectory((P, (1,)), (M, (10,)), (E, (20,)), (M, (11,)), (E, (21,)), (M, (12,)))
    assert row.env_mask == (1, 0, 1, 0, 1)
    assert row.turn_index == (0, -1, 1, -1, 2)


def test_logprobs_are_none_when_one_turn_has_none():
    assert trajectory((P, (1,)), (M, (10,), (-0.1,)), (E, (20,)), (M, (11,))).logprobs is None


@pytest.mark.parametrize(
    "segments",
    [
        [(M, (10,))],  # no prompt
        [(P, (1,)), (P, (2,)), (M, (10,))],  # two prompts
        [(P, (1,)), (E, (20,)), (M, (10,))],  # the environment speaks first
        [(P, (1,)), (M, (10,)), (M, (11,))],  # two turns in a row
        [(P, (1,)), (M, (10,)), (E, (20,))],  # an observation that nothing follows
        [],
    ],
)
def test_an_order_that_no_rollout_has_cannot_be_built(segments):
    with pytest.raises(ValueError):
        trajectory(*segments)


def test_a_segment_without_tokens_cannot_be_built():
    with pytest.raises(ValueError, match="has no tokens"):
        Segment(M, ())


def test_foreign_tokens_have_no_logprobs():
    with pytest.raises(ValueError, match="only tokens that the model sampled"):
        Segment(E, (20,), (-0.1,))


def test_logprobs_of_another_length_are_refused_with_both_lengths():
    with pytest.raises(ValueError, match="2 token_ids but 1 logprobs"):
        Segment(M, (10, 11), (-0.1,))


def test_a_completion_never_ends_in_a_tool_message():
    with pytest.raises(ValueError, match="could take for the model's answer"):
        trajectory((P, (1,)), (M, (10,)), messages=({"role": "tool", "content": "42"},))


@pytest.mark.parametrize("reason", StopReason)
def test_unfinished_follows_from_the_stop_reason(reason):
    assert reason.unfinished == (reason not in (StopReason.ANSWERED, StopReason.ENV_DONE))
