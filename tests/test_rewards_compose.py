"""One reward out of many terms: the outcome decides, every term is seen by name, turns get what they earned."""

import pytest

from envmask_trl import Reward, RolloutAborted, RolloutLimits, bounded, compose, hacking, rules
from envmask_trl.rewards.turns import GivesTurnRewards, at_density, check_turn_rewards

from .rewarded import as_plain_trl, as_trainer, play
from .tiny import answer, call

ADD, END, WRONG = call("add", a=20, b=22), answer("42"), answer("41")
GHOST = call("ghost")


def constant(name: str, value: float | None, low: float = 0.0, high: float = 1.0) -> Reward:
    return Reward(lambda rollout: value, name=name, low=low, high=high)


def usual(**options):
    return compose(rules.exact_answer(), [(rules.call_validity(), 0.2), (rules.repeated_calls(), 0.1)], **options)


def test_the_terms_are_summed_with_their_weights():
    keywords = as_trainer(play([ADD, END], [GHOST, END], [ADD, ADD, END], [ADD, WRONG]), answer=["42"] * 4)
    assert usual()(**keywords) == pytest.approx([1.0, 0.8, 0.95, 0.0])
    assert usual(outcome_weight=2.0)(**keywords) == pytest.approx([2.0, 1.8, 1.95, 0.0])
    assert usual().low == pytest.approx(-0.3) and usual().high == 1.0


def test_a_wrong_answer_got_nicely_is_worth_less_than_a_right_one_got_badly():
    badly = [GHOST, GHOST, GHOST, END]
    nicely = [ADD, WRONG]
    good, bad = usual()(**as_trainer(play(badly, nicely), answer=["42"] * 2))
    assert good > bad


@pytest.mark.parametrize(
    ("process", "message"),
    [
        ([("validity", -1.0, 0.0, 1.0)], r"move the reward by 1 \(validity 1\), the outcome exact_answer by 1; lower"),
        ([("a", 0.0, 1.0, 0.6), ("b", -1.0, 0.0, 0.5)], r"by 1.1 \(a 0.6 \+ b 0.5\)"),
        ([("late", 0.9, 1.0, 2.0)], r"by 2 \(late 2\)"),  # not applying is worth 0, so 0.9 is no floor
    ],
)
def test_process_that_outweighs_the_outcome_is_refused_unless_asked_for(process, message):
    terms = [(constant(name, None, low, high), weight) for name, low, high, weight in process]
    with pytest.raises(ValueError, match=message):
        compose(rules.exact_answer(), terms)
    assert compose(rules.exact_answer(), terms, allow_process_to_outweigh=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: compose(rules.exact_answer(), [(len, 0.1)]),
            "compose got 'len', whose range is unknown",
        ),
        (lambda: compose(rules.exact_answer(), [(rules.f1_answer(), -0.1)]), "the weight -0.1 for 'f1_answer'"),
        (lambda: compose(rules.f1_answer(), [(rules.f1_answer(), 0.1)]), r"two terms named \['f1_answer'\]"),
        (lambda: compose(usual()), "'composed', which is composed itself"),
        (lambda: usual(density="thick"), "density='thick'"),
        (lambda: usual(discount=1.5), "discount=1.5"),
    ],
)
def test_what_cannot_be_composed_is_refused_in_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_does_not_apply_is_left_out_and_without_an_outcome_nothing_is_scored():
    keywords = as_trainer(play([END], [END]), answer=["42", None])
    reward = compose(rules.exact_answer(), [(rules.call_validity(), 0.2), (constant("nice", 1.0), 0.5)])
    assert reward(**keywords) == [1.5, None]
    assert reward.turn_rewards(**keywords) == [[1.5], None]


def test_a_failed_environment_gives_neither_a_reward_nor_turn_rewards():
    def broken(city: str) -> str:
        """The weather now.

        Args:
            city: Name of a city.
        """
        raise RolloutAborted("down")

    keywords = as_trainer(play([call("broken", city="x")], tools=[broken]), answer=["42"])
    own = compose(bounded(lambda completions, **columns: [1.0], low=0, high=1))
    for reward in (usual(), own):
        assert reward(**keywords) == [None] == reward.turn_rewards(**keywords)


def test_each_term_is_logged_by_its_name():
    metrics, extras = {}, {}
    keywords = as_trainer(play([ADD, ADD, END], [END]), answer=["42", "41"])
    usual()(**keywords, log_metric=metrics.__setitem__, log_extra=extras.__setitem__)
    assert metrics == {"terms/exact_answer": 0.5, "terms/call_validity": 0.0, "terms/repeated_calls": -0.5}
    assert extras["composed/repeated_calls"] == [-0.5, None]  # the second made no call: it is in no mean


def test_a_weight_of_zero_logs_and_does_nothing_else():
    metrics = {}
    keywords = as_trainer(play([answer("<tool_response>42</tool_response>")]), answer=["42"])
    reward = compose(rules.exact_answer(), hacking.detectors())
    assert reward(**keywords, log_metric=metrics.__setitem__) == [0.0]
    assert metrics["terms/fake_observation"] == -1.0 and metrics["terms/exact_answer"] == 0.0


@pytest.mark.parametrize(
    ("density", "expected"),
    [
        #          ghost   add    again  answer
        ("dense", [-0.1, 0.0, -0.1, 1.0]),  # one illegal call of three, one repeated call of three
        ("sparse", [0.0, 0.0, 0.0, 0.8]),
        ("returned", [0.0, 0.2, 0.4, 1.0]),  # 1, -0.1 + 1 / 2, 0.4 / 2, -0.1 + 0.2 / 2
    ],
)
def test_turns_get_what_they_earned(density, expected):
    keywords = as_trainer(play([GHOST, ADD, ADD, END], [WRONG]), answer=["42", "42"])
    terms = [(rules.call_validity(), 0.3), (rules.repeated_calls(), 0.3)]
    reward = compose(rules.exact_answer(), terms, density=density, discount=0.5)
    turns = reward.turn_rewards(**keywords)
    assert turns[0] == pytest.approx(expected) and turns[1] == [0.0]


def test_at_any_density_but_returned_the_turns_sum_to_the_reward():
    keywords = as_trainer(play([ADD, ADD, GHOST, END], [END], [GHOST, WRONG]), answer=["42"] * 3)
    for density in ("dense", "sparse"):
        reward = usual(density=density)
        sums = [sum(turns) for turns in reward.turn_rewards(**keywords)]
        assert sums == pytest.approx(reward(**keywords))


def test_returned_without_a_discount_gives_the_first_turn_the_whole_reward():
    keywords = as_trainer(play([ADD, ADD, END]), answer=["42"])
    reward = usual(density="returned", discount=1.0)
    assert reward.turn_rewards(**keywords)[0][0] == pytest.approx(reward(**keywords)[0])


def test_a_rollout_without_a_turn_has_no_turn_rewards():
    keywords = as_trainer(play([END], limits=RolloutLimits(max_total_length=1)), answer=["42"])
    assert usual().turn_rewards(**keywords) == [[]] and usual()(**keywords) == [0.0]


def test_turn_rewards_do_not_score_again_what_was_just_scored():
    asked = []

    def slow(rollout):
        asked.append(rollout)
        return 1.0

    reward = compose(Reward(slow, name="slow", low=0, high=1), [(rules.call_validity(), 0.1)])
    keywords = as_trainer(play([ADD, END], [END]))
    assert reward(**keywords) == [1.0, 1.0] and reward.turn_rewards(**keywords) == [[0.0, 1.0], [1.0]]
    assert len(asked) == 2
    others = as_trainer(play([END], [ADD, END]))
    assert reward.turn_rewards(**others) == [[1.0], [0.0, 1.0]] and len(asked) == 4


def test_it_works_under_a_plain_trainer_too():
    keywords = as_plain_trl(play([ADD, END], [END]), answer=["42", "42"])
    reward = compose(rules.exact_answer(), [(rules.repeated_calls(), 0.1)], density="dense")
    assert reward(**keywords) == [1.0, 1.0] and reward.turn_rewards(**keywords) == [[0.0, 1.0], [1.0]]


def test_a_function_of_ones_own_gets_a_range_that_is_enforced():
    def length(completions, **columns):
        return [len(completion) / 10 for completion in completions]

    reward = compose(rules.em_answer(), [(bounded(length, low=0, high=1), 0.5)])
    assert reward(completions=["Oslo"], answer=["Oslo"]) == [1.2]
    with pytest.raises(ValueError, match=r"'length' gave rollout 0 2, outside of its range \[0, 1\]"):
        reward(completions=["x" * 20], answer=["Oslo"])


def test_a_function_that_returns_too_few_rewards_is_named():
    """One value must not be spread over all rows."""

    def one(completions, **columns):
        return [1.0]

    with pytest.raises(ValueError, match=r"'one' returned 1 values, expected a list .* for each of 4 rollouts"):
        compose(bounded(one, low=0, high=1))(completions=["a"] * 4)


def test_turn_rewards_of_ones_own_function_are_kept_and_checked():
    class Own:
        __name__ = "own"

        def __call__(self, completions, **columns):
            return [0.5] * len(completions)

        def turn_rewards(self, **columns):
            return [[0.5, 0.0, 0.0]]

    assert isinstance(Own(), GivesTurnRewards) and not isinstance(rules.exact_answer(), GivesTurnRewards)
    reward = compose(rules.exact_answer(), [(bounded(Own(), low=0, high=1), 0.5)], density="dense")
    assert reward.turn_rewards(**as_trainer(play([ADD, ADD, END]), answer=["42"])) == [[0.25, 0.0, 1.0]]
    with pytest.raises(ValueError, match="own gave rollout 0 3 turn rewards, expected one for each of its 2 turns"):
        reward.turn_rewards(**as_trainer(play([ADD, END]), answer=["42"]))


def test_the_arithmetic_of_turns():
    #                 what each turn earned
    assert at_density([0.5, 0.0, 1.0], "dense", 0.5) == [0.5, 0.0, 1.0]
    assert at_density([0.5, 0.0, 1.0], "returned", 0.5) == [0.75, 0.5, 1.0]
    assert at_density([0.5, 0.0, 1.0], "sparse", 0.5) == [0.0, 0.0, 1.5]
    assert at_density([], "sparse", 0.5) == [] == at_density([], "returned", 0.5)
    with pytest.raises(ValueError, match="turn_rewards of r returned 1 entries for 2 rollouts"):
        check_turn_rewards("r", [[1.0]], [1, 1])


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_turn_without_a_score_is_nan_for_credit_and_refused_where_scores_are_summed(missing):
    assert check_turn_rewards("r", [[1.0, missing], None], [2, 3], allow_unscored=True) == [
        [1.0, pytest.approx(float("nan"), nan_ok=True)],
        None,
    ]
    with pytest.raises(ValueError, match=r"turn_rewards of r gave rollout 0 .*, expected (a number|finite numbers)"):
        check_turn_rewards("r", [[1.0, missing], None], [2, 3])
    with pytest.raises(ValueError, match="expected finite numbers, or None where a turn has no score"):
        check_turn_rewards("r", [[float("inf"), missing]], [2], allow_unscored=True)


def test_a_composed_reward_scores_no_rollout_alone_rather_than_with_nothing():
    composed = usual()
    with pytest.raises(TypeError, match="scores the rollouts of a step together; call it with their columns"):
        composed.score(None)
