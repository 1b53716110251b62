"""The credit benchmark: its tasks by hand, its curves by hand, and its whole path with two steps."""

import json

from recipes.credit.__main__ import main
from recipes.credit.tasks import Picking
from recipes.experiments.comparison import smoothed


def played(task, *colours):
    env = Picking()
    env.reset(task=task, named="red")
    for colour in colours:
        assert not env.done
        env.pick(colour)
    return env


def test_a_wasted_step_costs_no_reward_and_is_no_success():
    wasted, straight = played("waste", "blue", "red"), played("waste", "red")
    assert wasted.done and wasted.get_turn_rewards() == [0.0, 1.0] and wasted.get_reward() == 1.0
    assert straight.done and straight.get_reward() == 1.0
    assert straight.succeeded and not wasted.succeeded
    assert played("waste", "blue", "blue", "blue", "blue").done


def test_only_the_third_step_decides():
    right, wrong = played("decisive", "blue", "pink", "red", "pink"), played("decisive", "red", "red", "blue", "red")
    assert right.done and right.get_turn_rewards() == [0.0, 0.0, 1.0, 0.0] and right.succeeded
    assert wrong.done and wrong.get_reward() == 0.0 and not wrong.succeeded
    assert played("decisive", "blue").state_key() == played("decisive", "pink").state_key()


def test_a_curve_is_the_mean_of_the_last_five_steps():
    assert smoothed([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]


def test_the_benchmark_writes_its_report(tmp_path, capsys):
    runs = main(seeds=1, steps=1, output_dir=tmp_path)
    again = main(seeds=1, steps=1, output_dir=tmp_path)
    assert again == runs  # nothing is played twice
    assert len(runs) == 8 and all(0 <= run.final <= 1 for run in runs)
    first = {run.task: run.success[0] for run in runs}
    assert all(run.success[0] == first[run.task] for run in runs)  # every mode starts with the same rollouts
    saved = json.loads((tmp_path / "credit.json").read_text())
    assert saved["about"]["steps"] == 1 and len(saved["runs"]) == 8
    assert (tmp_path / "credit.png").stat().st_size > 10_000
    assert "| `gigpo` |" in (tmp_path / "credit.md").read_text() and "| `gigpo` |" in capsys.readouterr().out
