"""Credit by turn in the trainer: the right number on the right token, through packing, shuffling, saving, the audit."""

import pytest
import torch
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer, load_rollouts, view

from .tiny import answer, call
from .tiny_for_loss import LOSS_TYPES, masked_loss_and_gradients, micro_batch, trainer_of
from .trained_scripts import logged, make_trainer

TWO_CALLS = [call("add", a=1, b=1), call("add", a=2, b=2), answer("4")]
ONE_CALL = [call("add", a=1, b=1), answer("2")]
AT_ONCE = [answer("7")]
SCRIPTS = [TWO_CALLS, ONE_CALL, AT_ONCE, TWO_CALLS]
OUTCOMES = [1.0, 0.0, 0.0, 1.0]
SCORES = [[0.0, 1.0, 1.0], [0.0, 0.0], [1.0], [0.0, 0.0, 1.0]]


class Scored:
    """A reward for the whole rollout that also scores its turns."""

    __name__ = "scored"

    def __init__(self, scores=SCORES):
        self.scores, self.keywords = scores, {}

    def __call__(self, completions, **_):
        return OUTCOMES[: len(completions)]

    def turn_rewards(self, **keywords):
        self.keywords = keywords
        return self.scores


def outcome(completions, **_):
    return OUTCOMES[: len(completions)]


def trained(tmp_path, reward, scripts=SCRIPTS, **options):
    """The trainer after a step, and its generation batch with the credit assigned."""
    trainer = make_trainer(tmp_path, reward, scripts, **options)
    batches, original = [], trainer.after_scoring
    trainer.after_scoring = lambda batch: (original(batch), batches.append(dict(batch)))
    trainer.train()
    return trainer, batches[0]


def by_turn(trainer, batch):
    """Of each rollout, the advantage of each turn; every token of a turn has the same, every other token 0."""
    found = []
    for row, turns in zip(batch["advantages"].tolist(), trainer.columns["turn_index"], strict=True):
        assert not any(value for value, turn in zip(row[: len(turns)], turns, strict=True) if turn < 0)
        assert not any(row[len(turns) :])
        each = {turn: {v for v, t in zip(row, turns, strict=False) if t == turn} for turn in sorted({*turns} - {-1})}
        assert all(len(values) == 1 for values in each.values())
        found.append([values.pop() for values in each.values()])
    return found


def test_turn_scores_reach_the_tokens_of_their_turn(tmp_path):
    """I-101, by hand: a rollout that ended before a turn stands in with the mean of its turns, in brackets."""
    reward = Scored()
    trainer, batch = trained(tmp_path, reward, credit="turn", scale_rewards="none")
    # turn 0: 0 0 1 0 -> .25; turn 1: 1 0 (1) 0 -> .5; turn 2: 1 (0) (1) 1 -> .75
    expected = [[-0.25, 0.5, 0.25], [-0.25, -0.5], [0.75], [-0.25, -0.5, 0.25]]
    assert by_turn(trainer, batch) == [pytest.approx(values) for values in expected]
    assert {"prompts", "completions", "completion_ids", "trajectories", "gold", "model_texts"} <= set(reward.keywords)
    assert {"trainer_state", "log_extra", "log_metric"} <= set(reward.keywords) and "prompt" not in reward.keywords
    assert logged(trainer)["rewards/scored/mean"] == 0.5  # the scalar is what is logged


@pytest.mark.parametrize("credit", ["turn", "turn_discounted", "gigpo"])
def test_equal_turn_scores_train_as_grpo_does(credit, tmp_path):
    """I-101: the weights after the step; equal are scores within a rollout, or undiscounted returns of its outcome."""
    weights = []
    equal = Scored([[outcome] * turns for outcome, turns in zip(OUTCOMES, (3, 2, 1, 3), strict=True)])
    options = {"turn": {}, "turn_discounted": {"turn_discount": 1.0}, "gigpo": {"step_advantage_weight": 0.0}}[credit]
    for number, (reward, settings) in enumerate(
        [(outcome, {}), (equal if credit == "turn" else outcome, {"credit": credit, **options})]
    ):
        trainer, batch = trained(tmp_path / str(number), reward, optim="sgd", learning_rate=1.0, **settings)
        weights.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        assert batch["advantages"].dim() == 1 + number
    for ours, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


def test_gigpo_by_hand(tmp_path):
    """Outcomes 1 0 0 1, discount .5. All start in one state; rollouts 0, 1 and 3 then read `2`, 0 and 3 `4`."""
    trainer, batch = trained(tmp_path, outcome, credit="gigpo", turn_discount=0.5, scale_rewards="none")
    # outcome: mean .5. returns: .25 .5 1 | 0 0 | 0 | .25 .5 1
    # at the start mean (.25 + 0 + 0 + .25) / 4 = .125; after `2` mean (.5 + 0 + .5) / 3 = .3333; after `4` both have 1
    a, b = 0.5 + 0.125, 0.5 + 1 / 6
    expected = [[a, b, 0.5], [-0.625, -0.5 - 1 / 3], [-0.625], [a, b, 0.5]]
    assert by_turn(trainer, batch) == [pytest.approx(values) for values in expected]
    assert logged(trainer)["credit/compared_turns"] == 1.0  # 9 turns: 4 at the start, 3 and 2


class Cells:
    """An environment that names its state and scores the turns it saw."""

    def reset(self, **row):
        self.at, self.moves = 0, []

    def go(self, by: int) -> str:
        """Go.

        Args:
            by: How far.
        """
        self.at += by
        self.moves.append(float(by > 0))
        return f"move {len(self.moves)}"  # what is shown differs where the state does not

    def state_key(self):
        return f"cell {self.at}"

    def get_turn_rewards(self):
        return self.moves

    def get_reward(self) -> float:
        return float(self.at)


def test_an_environment_names_states_and_scores_turns(tmp_path):
    scripts = [
        [call("go", by=1), call("go", by=-1), answer("a")],
        [answer("b")],
        [call("go", by=1), answer("c")],
        [call("go", by=1), answer("d")],
    ]
    settings = {"tools": None, "environment_factory": Cells, "scale_rewards": "none"}
    trainer, batch = trained(tmp_path / "gigpo", None, scripts, credit="gigpo", turn_discount=1.0, **settings)
    assert [tool.__name__ for tool in trainer.tools] == ["go"]
    assert trainer.trajectories[0].state_keys == ("cell 0", "cell 1", "cell 0")
    # rewards 0 0 1 1 -> outcome advantages -.5 -.5 .5 .5; returns 1 0 0 | 0 | 1 0 | 1 0: an answer earns nothing
    # cell 0: 1 and 0 of the first, 0, 1, 1 -> mean .6; cell 1: 0 0 0
    expected = [[-0.1, -0.5, -1.1], [-1.1], [0.9, 0.5], [0.9, 0.5]]
    assert by_turn(trainer, batch) == [pytest.approx(values) for values in expected]


def test_an_observation_that_is_trained_shares_the_credit_of_the_turn_before(tmp_path):
    trainer, batch = trained(tmp_path, Scored(), credit="turn", scale_rewards="none", mask_env_tokens=False)
    row, turns = batch["advantages"][0].tolist(), trainer.columns["turn_index"][0]
    first = turns.index(-1)
    assert row[first] == pytest.approx(-0.25) and row[turns.index(1)] == pytest.approx(0.5)


def test_a_cut_row_keeps_its_advantages_at_their_tokens(tmp_path, monkeypatch):
    """The cut of packing takes the last turn; what is left keeps its own."""
    from envmask_trl.training import trainer as module

    pack = module.pack_rollouts
    monkeypatch.setattr(module, "longest", lambda columns: 10_000)
    monkeypatch.setattr(
        module,
        "pack_rollouts",
        lambda columns, *, max_total_length, **rest: pack(
            columns, max_total_length=len(columns["prompt_ids"][0]) + 30, **rest
        ),
    )
    trainer, batch = trained(tmp_path, Scored(), credit="turn", scale_rewards="none")
    assert batch["advantages"].shape == batch["completion_ids"].shape == (4, 30)
    assert [values[:1] for values in by_turn(trainer, batch)] == [
        pytest.approx(values) for values in ([-0.25], [-0.25], [0.75], [-0.25])
    ]
    saved = load_rollouts(tmp_path / "rollouts")
    assert [len(row["advantage"]) for row in saved] == [len(row["completion_ids"]) for row in saved]


def test_shuffling_and_splitting_keep_advantages_beside_their_ids(tmp_path):
    """What TRL does with the batch before it trains it."""
    _, batch = trained(tmp_path, Scored(), credit="turn", max_steps=1)
    of_ids = {
        tuple(i): tuple(a) for i, a in zip(*(batch[n].tolist() for n in ("completion_ids", "advantages")), strict=True)
    }
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    for part in split_tensor_dict(shuffle_sequence_dict(tensors), 2):
        for ids, advantages in zip(part["completion_ids"].tolist(), part["advantages"].tolist(), strict=True):
            # rollouts 0 and 3 have the same ids and differ in the second turn's score only
            assert tuple(advantages) == of_ids[tuple(ids)] or ids == batch["completion_ids"][0].tolist()


@pytest.mark.parametrize("credit", ["turn", "turn_discounted", "gigpo"])
def test_the_audit_passes_and_the_saved_advantages_are_shown_by_token(credit, tmp_path):
    trainer, batch = trained(
        tmp_path,
        Scored(),
        credit=credit,
        audit_first_step=True,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
    )
    assert trainer.audit_report.passed and batch["advantages"].dim() == 2
    rows = load_rollouts(tmp_path / "rollouts")
    for row, values in zip(rows, batch["advantages"].tolist(), strict=True):
        assert row["advantage"] == pytest.approx(values[: len(row["completion_ids"])])
    facts = dict(view(rows, tokenizer=trainer.processing_class).rollouts[0].facts)
    assert " to " in facts["advantage"]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_one_advantage_on_every_token_is_the_loss_of_one_per_row(loss_type, level, tmp_path):
    """Every loss of TRL takes [B, C]; NaN and infinity on tokens of the environment change nothing."""
    trainer = trainer_of(
        EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, loss_type=loss_type, importance_sampling_level=level
    )
    rows = [([1, 2], [10, 11, 20, 21, 12, 19], [1, 1, 0, 0, 1, 1]), ([3], [13, 19], [1, 1])]
    old = {"old_per_token_logps": torch.full((2, 6), -3.0)}
    per_row, gradients = masked_loss_and_gradients(trainer, micro_batch(rows, [1.0, -0.5], **old))
    spread = [[1.0, 1.0, float("nan"), float("inf"), 1.0, 1.0], [-0.5, -0.5, 0.0, 0.0, 0.0, 0.0]]
    per_token, same = masked_loss_and_gradients(trainer, micro_batch(rows, spread, **old))
    assert per_token == pytest.approx(per_row, abs=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(same[name], gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[0.0]] * 4, "turn_rewards of scored gave rollout 0 1 turn rewards, expected one for each of its 3 turns"),
        (SCORES[:3], "turn_rewards of scored returned 3 entries for 4 rollouts"),
        (None, "turn_rewards of scored returned None for 4 rollouts"),
    ],
)
def test_scores_of_other_turns_or_rollouts_are_refused(scores, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, Scored(scores), credit="turn")


def test_credit_by_turn_without_scores_of_turns_says_that_it_is_grpo(tmp_path):
    trainer = make_trainer(tmp_path, outcome, SCRIPTS, credit="turn", max_steps=2)
    said = []
    trainer.step_log.warn = said.append
    trainer.train()
    assert len([sentence for sentence in said if "which is credit='outcome'" in sentence]) == 1


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
def test_credit_by_turn_needs_the_turns(tmp_path):
    with pytest.raises(ValueError, match="credit is 'gigpo', which needs the turns of each rollout"):
        make_trainer(tmp_path, outcome, tools=None, rollout_func=lambda prompts, trainer: {}, credit="gigpo")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credit": "ppo"}, "credit is 'ppo', expected one of 'outcome', 'turn_discounted', 'turn', 'gigpo'"),
        ({"void_policy": "no"}, "void_policy is 'no', expected one of 'train', 'mask_loss', 'drop'"),
        ({"turn_discount": 1.5}, "turn_discount is 1.5, expected a number from 0 to 1"),
        ({"scale_rewards": "true"}, "scale_rewards is 'true', expected one of 'group', 'batch', 'none'"),
    ],
)
def test_a_wrong_option_is_named(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        EnvMaskGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **options)


def test_gigpo_says_which_of_its_parts_an_aggregation_holds_for(tmp_path, caplog):
    make_trainer(tmp_path, outcome, credit="gigpo", multi_objective_aggregation="normalize_then_sum")
    assert "'normalize_then_sum' holds for the outcome's part of credit='gigpo'" in caplog.text
