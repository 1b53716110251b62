"""The mask ablation: what is saved is kept, what is done is skipped, and the tables say what the records say."""

import json
import math

import pytest

from recipes.experiments.comparison import interval, sign_flip_p
from recipes.experiments.markdown import replace_section
from recipes.experiments.mask_ablation import ARMS, AblationJob, main
from recipes.experiments.mask_report import difference, success_table
from recipes.experiments.records import append, by_arm, finished, load
from recipes.experiments.runner import parse_seeds
from recipes.experiments.task import resized, resized_row, tools_of

QUICK = ("--quick", "--arms", "sft-report,on,off")


@pytest.fixture(scope="module")
def quick(tmp_path_factory, quick_checkpoint):
    """Two arms in two steps each, and their checkpoint."""
    folder = tmp_path_factory.mktemp("ablation")
    main([*QUICK, "--from", str(quick_checkpoint), "--output", str(folder)])
    return folder


def test_the_quick_run_leaves_records_tables_and_a_figure(quick):
    arms = by_arm(load(quick / "mask_ablation.jsonl"))
    assert list(arms) == ["sft-report", "on", "off"]
    for arm in ("on", "off"):
        record = arms[arm][0]
        assert {len(curve) for curve in record["curves"].values()} == {2} and record["steps"] == 2
        assert [report["step"] for report in record["paired"]] == [1, 2]
        assert set(record["held_out"]) == {"sampled", "greedy"} and {"torch", "trl"} <= set(record["versions"])
    assert "| `off` | 1 |" in (quick / "mask_ablation.md").read_text()
    assert (quick / "mask_ablation.png").stat().st_size > 10_000


def test_the_arms_of_a_seed_start_alike_and_differ_in_the_mask_alone(quick):
    arms = by_arm(load(quick / "mask_ablation.jsonl"))
    on, off = arms["on"][0], arms["off"][0]
    assert on["curves"]["reward"][0] == off["curves"]["reward"][0]
    assert on["curves"]["env_token_share"][0] == off["curves"]["env_token_share"][0]
    assert on["curves"]["grad_norm"][0] != off["curves"]["grad_norm"][0]
    assert on["settings"] == off["settings"] | {"mask": True}


def test_a_restart_runs_nothing_twice(quick, monkeypatch):
    before = (quick / "mask_ablation.jsonl").read_bytes()
    monkeypatch.setattr(AblationJob, "run", lambda job: pytest.fail(f"{job.arm} was run again"))
    main([*QUICK, "--output", str(quick)])
    assert (quick / "mask_ablation.jsonl").read_bytes() == before


def record(arm, seed, share, **others):
    held_out = {decoding: {"0-2": share, "3": 0.0} for decoding in ("sampled", "greedy")}
    return {"arm": arm, "seed": seed, "steps": 60, "settings": {}, "held_out": held_out, **others}


def test_arms_are_compared_seed_by_seed_and_only_where_both_have_it():
    rows = [record("on", seed, share) for seed, share in enumerate((0.9, 0.8, 0.7, 0.6, 0.5))]
    rows += [record("off-triple", seed, share) for seed, share in enumerate((0.5, 0.4, 0.3, 0.2))]
    arms = by_arm(rows)
    assert difference("off-triple", arms) == ("-0.40 ± 0.00", "0.125")
    assert difference("on", arms) == ("", "")
    assert "| `on` | 5 | 0.70 ± 0.20 |" in success_table(arms)


def test_an_arm_whose_training_broke_down_stays_in_with_a_success_of_0():
    broken = record("off", 0, 0.5) | {"held_out": {}, "stopped_by": "RuntimeError: probabilities are nan"}
    assert "| `off` | 1 | 0.00 | 0.00 |" in success_table(by_arm([broken]))


def test_a_line_that_stands_twice_or_with_other_settings_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, record("on", 0, 0.5))
    append(path, record("on", 1, 0.5, settings={"mask": False}))
    assert finished(path) == {("on", 0), ("on", 1)}
    with pytest.raises(ValueError, match="different settings"):
        by_arm(load(path))
    with pytest.raises(ValueError, match="seed 0 twice"):
        by_arm([record("on", 0, 0.5), record("on", 0, 0.5)])


def test_the_interval_and_the_test_are_those_computed_by_hand():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.half == pytest.approx(4.303 / math.sqrt(3))
    assert sign_flip_p([0.4, 0.5, 0.3, 0.6]) == 2 / 16
    assert sign_flip_p([1.0, -1.0]) == 1.0
    assert sign_flip_p([3.0, -1.0, 2.0]) == 4 / 8  # 6, 4, 2 and 0 by the signs; 4 and 6 are as far, of either sign


REPORT = '{"city":"Oslo","wind":41,"rain":73,"temperature":27}'


def test_observations_have_the_lengths_that_they_are_named_for():
    assert resized(REPORT, "number") == "27" and resized(REPORT, "report") == REPORT
    longer = json.loads(resized(REPORT, "long"))
    assert len(longer.pop("hourly")) == 4 and longer == json.loads(REPORT)
    lengths = [len(tools_of(observation, "monday")[0]("Oslo")) for observation in ("number", "report", "long")]
    assert lengths == sorted(lengths) and lengths[0] == 2


def test_only_weather_reports_of_a_demonstration_are_resized():
    row = {"messages": [{"role": "tool", "name": "weather", "content": REPORT}, {"role": "tool", "name": "calculator"}]}
    assert resized_row(row, "number")["messages"] == [
        {"role": "tool", "name": "weather", "content": "27"},
        {"role": "tool", "name": "calculator"},
    ]


def test_seeds_and_arms_are_read_from_the_command_line(capsys):
    assert parse_seeds("0-3,7") == [0, 1, 2, 3, 7]
    with pytest.raises(SystemExit):
        main(["--arms", "on,of"])
    assert "there is no arm 'of'" in capsys.readouterr().err
    assert {"on", "off", "off-third", "off-triple", "on-grpo", "off-grpo", "on-cispo", "off-long"} <= set(ARMS)


def test_only_the_marked_section_of_a_report_is_written_anew(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- mask ablation: generated -->\nold\n<!-- mask ablation: end -->\nafter\n")
    replace_section(path, "mask ablation", "new")
    assert path.read_text() == "before\n<!-- mask ablation: generated -->\nnew\n<!-- mask ablation: end -->\nafter\n"
    with pytest.raises(ValueError, match="lacks the lines"):
        replace_section(path, "atlas", "new")
