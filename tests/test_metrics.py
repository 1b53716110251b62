"""What a run logs about its rollouts, and the sentences it says when they look ill."""

import json
import logging
import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import TrainerState

from envmask_trl import CallStatus, ObservationEncoder, ProgressLine, StopReason
from envmask_trl.rollout.drift import DriftKind
from envmask_trl.training.metrics import length_metrics, mask_metrics, tool_metrics
from envmask_trl.training.row_facts import CallFacts, RowFacts, observation_openings
from envmask_trl.training.symptoms import STEPS, Symptoms

from . import scripted_training
from .launching import run
from .scripted_training import CALLS, ROWS, UNFINISHED, PlaysRows
from .tiny import answer, call, tiny_tokenizer
from .trained_scripts import logged, make_trainer

FACTS = [
    RowFacts(
        prompt_tokens=10,
        completion_tokens=20,
        sampled_tokens=8,
        turns=2,
        stop_reason=StopReason.ANSWERED,
        unfinished=False,
        calls=(CallFacts("weather", CallStatus.OK, 0.1), CallFacts("weather", CallStatus.ERROR, 0.3)),
    ),
    RowFacts(
        prompt_tokens=10,
        completion_tokens=10,
        sampled_tokens=10,
        turns=1,
        stop_reason=StopReason.LENGTH,
        unfinished=True,
        cut_observations=1,
        control_tokens=3,
        drift=(DriftKind.THINKING.value, DriftKind.THINKING.value, DriftKind.TOKENS.value),
        calls=(
            CallFacts("weather", CallStatus.TIMEOUT, 2.0),
            CallFacts("weather", CallStatus.BAD_ARGUMENTS, 0.0),
            CallFacts("invented", CallStatus.UNKNOWN_TOOL, 0.0),
            CallFacts("unreadable_call", CallStatus.MALFORMED, 0.0),
        ),
        plays_environment=True,
    ),
]


def test_shares_of_the_mask_are_over_tokens_and_rollouts():
    logged = mask_metrics(FACTS, drift_kinds=list(DriftKind))
    assert logged["env_mask/env_token_share"] == pytest.approx(0.4)  # 12 of 30
    assert logged["env_mask/turns"] == 1.5
    assert logged["env_mask/cut_observations"] == 0.5 and logged["env_mask/control_tokens"] == 1.5
    assert logged["env_mask/plays_environment_share"] == 0.5
    assert logged["env_mask/stop/answered"] == logged["env_mask/stop/length"] == 0.5
    assert sum(value for name, value in logged.items() if name.startswith("env_mask/stop/")) == 1


def test_drift_is_logged_by_kind_and_as_a_sum():
    logged = mask_metrics(FACTS, drift_kinds=list(DriftKind))
    assert logged["env_mask/drift"] == 1.5
    kinds = {name.rpartition("/")[2]: value for name, value in logged.items() if name.startswith("env_mask/drift/")}
    assert kinds == dict.fromkeys(DriftKind, 0.0) | {"thinking": 1.0, "tokens": 0.5}
    assert not [name for name in mask_metrics(FACTS) if name.startswith("env_mask/drift/")]


def test_a_call_that_was_never_run_has_no_latency():
    logged = tool_metrics(FACTS, tool_names=["weather", "calculator"])
    assert logged["tools/weather/call_frequency"] == 2.0 and logged["tools/weather/failure_frequency"] == 0.75
    assert logged["tools/weather/latency_p50_s"] == pytest.approx(0.3)  # of 0.1, 0.3, 2.0
    assert logged["tools/weather/latency_p95_s"] == pytest.approx(0.3 + 0.9 * 1.7)
    assert logged["tools/latency_p50_s"] == pytest.approx(0.3)


def test_a_tool_that_was_not_called_has_no_failures_and_a_name_that_the_model_made_up_no_metric():
    logged = tool_metrics(FACTS, tool_names=["weather", "calculator"])
    assert [name for name in logged if name.startswith("tools/calculator/")] == ["tools/calculator/call_frequency"]
    assert logged["tools/calculator/call_frequency"] == 0
    assert not [name for name in logged if "invented" in name or "unreadable" in name]
    assert logged["tools/call_frequency"] == 3 and logged["tools/failure_frequency"] == pytest.approx(5 / 6)
    for status in ("unknown_tool", "malformed", "bad_arguments", "timeout"):
        assert logged[f"tools/{status}_frequency"] == pytest.approx(1 / 6)


def test_a_step_without_calls_or_finished_rollouts_is_logged():
    silent = [RowFacts(10, 0, 0, 0, StopReason.PROMPT_TOO_LONG, True)]
    assert mask_metrics(silent)["env_mask/env_token_share"] == 1
    assert tool_metrics(silent, tool_names=[])["tools/failure_frequency"] == 0
    assert length_metrics(silent)["completions/mean_terminated_length"] == 0
    assert length_metrics(FACTS)["completions/mean_terminated_length"] == 8


def test_a_run_logs_each_tool_and_says_once_that_rewards_are_constant_and_observations_made_up(tmp_path, caplog):
    scripts = [
        [call("add", a=1, b=2), answer("3")],
        [call("add", a=1, b=2), call("add", a="x", b=2), answer("3")],
        [call("invented"), answer("3")],
        [answer("<tool_response>\n3\n</tool_response>")],
    ]
    trainer = make_trainer(tmp_path, lambda completions, **_: [1.0] * len(completions), scripts, max_steps=STEPS + 1)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    first = logged(trainer)
    assert first["tools/add/call_frequency"] == 0.75 and first["tools/add/failure_frequency"] == pytest.approx(1 / 3)
    assert first["tools/unknown_tool_frequency"] == 0.25  # of 4 calls
    assert 0 < first["tools/add/latency_p50_s"] <= first["tools/add/latency_p95_s"] < 10
    assert first["env_mask/plays_environment_share"] == 0.25
    said = [record.getMessage() for record in caplog.records if "step_log" in record.name]
    assert len(said) == 2
    assert said[0].startswith("in 1 of 4 rollouts the model writes observations itself")
    assert said[1].startswith(f"for {STEPS} steps the rewards of each group were all the same")


def test_a_run_whose_rollouts_are_all_cut_says_which_option_cut_them(tmp_path, caplog):
    scripts = [[answer("." * 100)]] * 4
    trainer = make_trainer(tmp_path, lambda completions, **_: [0.0, 1.0] * 2, scripts, max_completion_length=20)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    (said,) = [record.getMessage() for record in caplog.records if "step_log" in record.name]
    assert said.startswith(
        "all 4 rollouts of a step were ended from outside, 4 of them by length: raise max_completion"
    )


def test_every_reason_that_ends_a_rollout_from_outside_has_a_remedy():
    for reason in StopReason:
        said: list[str] = []
        Symptoms(said.append).watch_rollouts([RowFacts(1, 1, 1, 1, reason, reason.unfinished)])
        assert len(said) == reason.unfinished


def test_rollouts_of_which_one_has_ended_by_itself_are_not_all_cut():
    said: list[str] = []
    Symptoms(said.append).watch_rollouts([*with_calls(0), RowFacts(1, 1, 1, 1, StopReason.LENGTH, True)])
    assert not said


def test_rewards_that_once_differ_in_a_group_start_the_count_again():
    said: list[str] = []
    symptoms = Symptoms(said.append)
    same = torch.tensor([[1.0], [1.0], [0.0], [torch.nan]])  # groups of two; between groups they may differ
    told_apart = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    for rewards in [same] * (STEPS - 1) + [told_apart] + [same] * (STEPS - 1):
        symptoms.watch_rewards(rewards, group_size=2)
    assert not said
    for _ in range(STEPS):
        symptoms.watch_rewards(same, group_size=2)
    assert len(said) == 1


def with_calls(per_rollout: float) -> list[RowFacts]:
    """Twenty rollouts with that many calls on average."""
    calls = (CallFacts("add", CallStatus.OK, 0.1),) * round(20 * per_rollout)
    return [RowFacts(1, 1, 1, 1, StopReason.ANSWERED, False, calls=own) for own in (calls, *[()] * 19)]


@pytest.mark.parametrize(
    ("calls", "collapses"),
    [
        ([2] * STEPS + [0] * STEPS, True),
        ([2] * STEPS + [0] * (STEPS - 1), False),  # it may come back
        ([2] * STEPS + [1] * 20, False),  # fewer calls may be better
        ([0.05] * STEPS + [0] * STEPS, False),  # hardly ever used: nothing collapsed
    ],
)
def test_tool_use_collapses_when_nearly_all_calls_are_gone_for_some_steps(calls, collapses):
    said: list[str] = []
    symptoms = Symptoms(said.append)
    for number in calls:
        symptoms.watch_rollouts(with_calls(number))
    assert len(said) == collapses and all(text.startswith("tool use collapses, from 2 calls") for text in said)


def test_an_observation_opens_with_what_a_model_never_writes():
    encoder = ObservationEncoder(tiny_tokenizer(), stop_token_ids={0})
    assert observation_openings(encoder, ["add", "look"]) == {"<tool_response>"}
    assert observation_openings(None, []) == frozenset()


def worker(folder: Path) -> None:
    """One process of the run below."""
    trainer = scripted_training.make_trainer(folder / "run", per_device_train_batch_size=ROWS // 2)
    trainer.sampler = PlaysRows(trainer)
    trainer.train()
    (folder / f"{trainer.accelerator.process_index}.json").write_text(json.dumps(trainer.state.log_history[0]))


def test_two_processes_log_the_rollouts_of_both(tmp_path):
    status, output = run("-m", "tests.test_metrics", str(tmp_path), cwd=tmp_path, launcher="two processes")
    assert status == 0, output
    logs = [json.loads((tmp_path / f"{process}.json").read_text()) for process in (0, 1)]
    for log in logs:
        assert log["tools/look/call_frequency"] == sum(CALLS) / ROWS
        assert log["env_mask/turns"] == (sum(CALLS) + ROWS) / ROWS
        assert log["env_mask/stop/length"] == 1 / ROWS and UNFINISHED >= ROWS // 2  # one row, of the second process
    names = ("tools/look/latency_p95_s", "env_mask/env_token_share", "completions/max_length", "num_tokens")
    assert [logs[0][name] for name in names] == [logs[1][name] for name in names]


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
    scripted_training.end_process()


def test_a_line_of_progress_has_a_few_of_the_keys_and_leaves_the_log_to_the_trackers(capsys):
    line, state = ProgressLine("GRPO", every_s=1000.0), TrainerState(max_steps=2, is_world_process_zero=True)
    logs = {"loss": -0.0123, "reward": 0.5, "tools/call_frequency": 1.0, "env_mask/env_token_share": 0.75, "lr": 1e-6}
    for state.global_step in (1, 2):
        line.on_log(None, state, None, logs)
    line.on_log(None, state, None, {"train_runtime": 3.0})
    said = capsys.readouterr().out
    assert re.fullmatch(r"GRPO +2/2  loss -0.012  reward 0.50  calls 1.00  of the environment 0.75  \d+ s\n", said)
    line.every_s, state.is_world_process_zero = 0.0, False
    line.on_log(None, state, None, logs)
    assert capsys.readouterr().out == ""
