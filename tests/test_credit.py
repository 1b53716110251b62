"""Advantages of turns against numbers worked by hand, and against TRL's GRPO where they must be it."""

import re
from pathlib import Path

import pytest
import torch

from envmask_trl import Segment, Source, StopReason, Trajectory
from envmask_trl.inspect.row_proof import group_advantages
from envmask_trl.training.credit import Scaling, discounted_returns, per_token, step_advantages, turn_advantages
from envmask_trl.training.turn_credit import compared_share
from envmask_trl.training.turn_scores import RowTurns, function_scores, states_before_turns, turn_values

NAN = float("nan")
M, E, T = Source.MODEL, Source.ENV, Source.TEMPLATE


def scaling(group_size, *, weights=(1.0,), scale_rewards="none", **options):
    return Scaling(torch.tensor(weights), group_size, scale_rewards=scale_rewards, **options)


def one_function(*rows):
    """Scores of turns, [N, K, 1]; a rollout with fewer turns is filled with NaN."""
    most = max(map(len, rows))
    return torch.tensor([[[value] for value in row] + [[NAN]] * (most - len(row)) for row in rows])


def turns(number, *scores, states=(), dropped=False):
    return RowTurns(number, (*scores, None), tuple(states), dropped)


def rounded(tensor, digits=4):
    return [[round(value, digits) for value in row] for row in tensor.tolist()]


def test_three_turns_by_hand():
    """I-101: scores .2 .2 1 of one rollout and .2 .6 0 of the other; each turn against the same turn of the other."""
    values = one_function([0.2, 0.2, 1.0], [0.2, 0.6, 0.0])
    # means at the turns 0.2, 0.4, 0.5
    assert rounded(turn_advantages(values, scaling(2))) == [[0.0, -0.2, 0.5], [0.0, 0.2, -0.5]]
    # each rollout's mean square (0 + .04 + .25) / 3 = .096667; sum / (2 - 1) = .193333; its root .439697
    scaled = turn_advantages(values, scaling(2, scale_rewards="group"))
    assert rounded(scaled) == [[0.0, -0.4548, 1.1369], [0.0, 0.4548, -1.1369]]


def test_a_rollout_that_ended_earlier_stands_in_with_the_mean_of_its_turns():
    values = one_function([1.0, 0.0], [0.0, 1.0, 1.0, 4.0])
    # turn 0: mean .5; turn 1: .5; turns 2 and 3: the first rollout stands in with .5, so .75 and 2.25
    assert rounded(turn_advantages(values, scaling(2))) == [[0.5, -0.5, 0.0, 0.0], [-0.5, 0.5, 0.25, 1.75]]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_equal_turn_scores_are_grpo_whatever_the_numbers_of_turns(scale_rewards, aggregation):
    torch.manual_seed(0)
    rewards = torch.randn(12, 2)
    rewards[3, 1], rewards[7] = NAN, NAN  # a function that does not apply, a rollout that nobody scored
    rows = [turns(1 + number % 5, None, None) for number in range(12)]
    options = {"scale_rewards": scale_rewards, "aggregation": aggregation}
    values = turn_values(rows, rewards, at_end=False)
    found = turn_advantages(values, scaling(4, weights=(1.0, 0.5, 1.0), **options))
    expected = group_advantages(rewards, torch.tensor([1.0, 0.5]), num_generations=4, **options)
    for row, advantages, wanted in zip(rows, found, expected, strict=True):
        torch.testing.assert_close(advantages[: row.num_turns], wanted.expand(row.num_turns), rtol=0, atol=1e-6)


def test_undiscounted_returns_of_an_outcome_are_grpo():
    rewards = torch.tensor([[1.0], [0.0], [0.0], [0.5]])
    rows = [turns(number, None) for number in (3, 1, 4, 2)]
    values = discounted_returns(turn_values(rows, rewards, at_end=True), 1.0)
    found = turn_advantages(values, scaling(4, weights=(1.0, 1.0), scale_rewards="group"))
    expected = group_advantages(
        rewards, torch.ones(1), num_generations=4, scale_rewards="group", aggregation="sum_then_normalize"
    )
    for row, advantages, wanted in zip(rows, found, expected, strict=True):
        torch.testing.assert_close(advantages[: row.num_turns], wanted.expand(row.num_turns), rtol=0, atol=1e-6)


def test_an_observation_does_not_end_a_return():
    """Rewards 0 and 1 of two turns with an observation between them, discount .5: the first returns .5."""
    returns = discounted_returns(one_function([0.0, 1.0], [2.0]), 0.5)
    assert rounded(returns[:, :, 0])[0] == [0.5, 1.0]
    assert returns[1, 0, 0] == 2.0 and returns[1, 1, 0].isnan()  # no second turn, so no return of it
    assert rounded(per_token(returns[:1, :, 0], [[0, 0, -1, -1, 1]], 6)) == [[0.5, 0.5, 0.0, 0.0, 1.0, 0.0]]


def test_an_outcome_and_turn_rewards_are_discounted_together():
    # turns score 1, 0, 0; the outcome 2 counts at the end, with weight .5: u = 1, 0, 1; G_1 = .5, G_0 = 1 + .25
    rows = [turns(3, (1.0, 0.0, 0.0), None), turns(1, (0.0,), None)]
    values = discounted_returns(turn_values(rows, torch.tensor([[NAN, 2.0], [NAN, 0.0]]), at_end=True), 0.5)
    found = turn_advantages(values, scaling(2, weights=(1.0, 0.5, 1.0)))
    # the second rollout has 0 at its turn, and stands in with 0: each advantage is half of the first one's return
    assert rounded(found) == [[0.625, 0.25, 0.5], [-0.625, 0.0, 0.0]]


def test_a_function_of_turns_and_one_of_the_whole_add_up_with_their_weights():
    rows = [turns(2, (1.0, 0.0), None), turns(2, (0.0, 0.0), None)]
    values = turn_values(rows, torch.tensor([[9.0, 1.0], [9.0, 0.0]]), at_end=False)  # the 9 is not the turns' own
    assert values[0, :, :2].tolist() == [[1.0, 1.0], [0.0, 1.0]]
    # u = 2 * 1 + .5 * 1 = 2.5 and .5 against 0 and 0
    assert rounded(turn_advantages(values, scaling(2, weights=(2.0, 0.5, 1.0)))) == [[1.25, 0.25], [-1.25, -0.25]]


def test_a_dropped_rollout_is_in_no_mean():
    rows = [turns(1, (3.0,)), turns(1, (1.0,)), turns(1, (100.0,), dropped=True)]
    values = turn_values(rows, torch.zeros(3, 1), at_end=False)
    assert rounded(turn_advantages(values, scaling(3, weights=(1.0, 1.0)))) == [[1.0], [-1.0], [0.0]]


def test_a_rollout_in_which_nothing_was_sampled_stays_in_the_baseline():
    rows = [turns(0, None), turns(2, None)]
    values = turn_values(rows, torch.tensor([[0.0], [1.0]]), at_end=False)
    assert rounded(turn_advantages(values, scaling(2, weights=(1.0, 1.0)))) == [[-0.5, 0.0], [0.5, 0.5]]


def test_a_group_without_a_difference_and_a_group_without_scores_have_no_advantage():
    values = one_function([1.0, 2.0], [1.0, 2.0], [NAN, NAN], [NAN, NAN], [0.0], [5.0])
    found = turn_advantages(values, scaling(2, scale_rewards="group"))
    assert not found[:4].any() and found[4, 0] == -found[5, 0] < 0 and found.isfinite().all()


def test_gigpo_compares_turns_of_the_same_state_by_hand():
    """Two rollouts of a group meet in A and C; the first comes back to A. Returns with discount .5."""
    states = [["A", "B", "A"], ["A", "C"], ["A", "C"], ["D"]]
    rewards = one_function([0.0, 0.0, 4.0], [0.0, 2.0], [1.0, 0.0], [7.0])
    returns = discounted_returns(rewards, 0.5)  # 1 2 4 | 1 2 | 1 0 | 7
    found = step_advantages(returns, states, scaling(2))
    # rollouts 0, 1: A has 1, 4 and 1, mean 2; B and C once. rollouts 2, 3 are another group: nothing is met twice
    assert rounded(found) == [[-1.0, 0.0, 2.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    # deviation of 1, 4, 1: sqrt((1 + 4 + 1) / 2) = 1.7321
    scaled = step_advantages(returns, states, scaling(2, scale_rewards="group"))
    assert rounded(scaled, 3)[:2] == [[-0.577, 0.0, 1.155], [-0.577, 0.0, 0.0]]
    # of all 8 returns 1 2 4 1 2 1 0 7: mean 2.25, squares sum to 35.5, sqrt(35.5 / 7) = 2.252
    batch = step_advantages(returns, states, scaling(2, scale_rewards="batch"))
    assert rounded(batch, 3)[0] == [-0.444, 0.0, 0.888]


def test_gigpo_leaves_a_dropped_rollout_out_of_its_states():
    rows = [turns(1, None, states=["A"]), turns(1, None, states=["A"], dropped=True), turns(1, None, states=["A"])]
    values = discounted_returns(turn_values(rows, torch.tensor([[1.0], [100.0], [0.0]]), at_end=True), 0.95)
    found = step_advantages(values, [row.states for row in rows], scaling(3, weights=(1.0, 1.0)))
    assert rounded(found) == [[0.5], [0.0], [-0.5]]
    nothing = turn_values([turns(1, None, states=["A"], dropped=True)] * 2, torch.zeros(2, 1), at_end=True)
    assert not step_advantages(nothing, [["A"]] * 2, scaling(2, weights=(1.0, 1.0))).any()


def test_a_state_that_only_dropped_rollouts_share_is_not_reported_as_compared():
    rows = [turns(2, None, states=["A", "B"]), turns(1, None, states=["A"], dropped=True)]
    values = turn_values(rows, torch.tensor([[1.0], [9.0]]), at_end=True)
    assert compared_share([row.states for row in rows], values, 2) == 0.0
    assert compared_share([("A", "B"), ("A",)], torch.zeros(2, 2, 1), 2) == pytest.approx(2 / 3)


def rollout(*observations, state_keys=(), prompt=(1, 2)):
    """A model turn, then each observation (between its scaffold) and a turn."""
    segments = [Segment(Source.PROMPT, prompt), Segment(M, (10, 19))]
    for turn, ids in enumerate(observations):
        segments += [Segment(T, (8, turn)), Segment(E, tuple(ids)), Segment(T, (9,)), Segment(M, (11, 19))]
    return Trajectory(tuple(segments), StopReason.ANSWERED, state_keys=state_keys)


def test_a_state_is_what_the_environment_last_showed():
    first, second = states_before_turns(rollout([20, 21], [22])), states_before_turns(rollout([22], [20, 21]))
    assert len(set(first)) == 3 and first[0] == second[0]  # the prompt
    assert states_before_turns(rollout(prompt=(1, 3))) != states_before_turns(rollout())  # another reset
    assert first[1:] == second[:0:-1]  # the same observations, the other way round, under other scaffolds


def test_state_key_stands_before_the_observation():
    keys = states_before_turns(rollout([20], [20], state_keys=("hall", "cellar", "hall")))
    assert keys[0] == keys[2] != keys[1]
    mixed = states_before_turns(rollout([20], [20], state_keys=(None, "cellar", None)))
    assert mixed[0] == states_before_turns(rollout([20]))[0] and mixed[2] == states_before_turns(rollout([20]))[1]


def test_the_reward_of_the_page_scores_turns():
    page, names = (Path(__file__).parent.parent / "docs" / "credit.md").read_text(), {}
    exec(re.search(r"```python\n(class .*?)```", page, flags=re.S)[1], names)
    reward, rows = names["RightAndShort"](), [rollout([20], [21]), rollout()]
    columns = {"trajectories": rows, "model_texts": ["It is Oslo", "Rome"], "answer": ["Oslo", "Oslo"]}
    assert reward(**columns) == [1.0, 0.0]
    assert function_scores(reward, "right_and_short", rows, columns) == [(-0.05, -0.05, 1.0), (0.0,)]


def test_advantages_stand_on_their_turns_tokens_only():
    advantages = torch.tensor([[0.5, -0.5], [2.0, 0.0]])
    # completion     m    m    e    t    m     | pad
    turn_index = [[0, 0, -1, -1, 1], [0]]
    assert per_token(advantages, turn_index, 6).tolist() == [[0.5, 0.5, 0.0, 0.0, -0.5, 0.0], [2.0, 0, 0, 0, 0, 0]]
