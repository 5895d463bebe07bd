"""The comparison of learning algorithms: records, tables, and a kill."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from harl_mapush.callbacks.curves import read_points
from harl_mapush.runs import run_folder
from mapush.extensions.sweep.child import wait_until_saved
from mqe.config import load_yaml

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("algorithms")


def record(*successes: float) -> dict[str, Any]:
    """Return marl-eval's record of a run with a checkpoint every million env steps and minute."""
    steps = {
        f"step_{k}": {
            "step_count": (k + 1) * 1_000_000,
            "elapsed_time": (k + 1) * 60.0,
            "success_rate": [value],
        }
        for k, value in enumerate(successes)
    }
    return steps | {"absolute_metrics": {"success_rate": [successes[-1]]}}


def test_a_seed_measured_again_replaces_the_earlier_one(comparison: ModuleType) -> None:
    earlier = {"mapush": {"box": {"happo": {"seed_1": record(0.1, 0.2), "seed_2": record(0.5)}}}}
    newer = {"mapush": {"box": {"happo": {"seed_1": record(0.9)}, "ippo": {"seed_1": record(0.3)}}}}
    box = comparison.join(earlier, newer)["mapush"]["box"]
    assert box["happo"] == {"seed_1": record(0.9), "seed_2": record(0.5)}
    assert box["ippo"] == {"seed_1": record(0.3)}
    assert earlier["mapush"]["box"]["happo"]["seed_1"] == record(0.1, 0.2)


def test_tables_have_the_last_success_and_the_end_of_each_record(comparison: ModuleType) -> None:
    seeds = {f"seed_{k}": record(0.1, value) for k, value in enumerate((0.6, 0.7, 0.8))}
    table = comparison.markdown(comparison.read_groups({"mapush": {"box": {"happo": seeds}}}))
    row = "| 3 | 0.70 (0.60 to 0.80) | 0.60, 0.70, 0.80 | 1 M: 0.10; 2 M: 0.70 | 2.0 |"
    assert f"| HAPPO {row}" in table
    assert "| HAPPO | 3 | 0.70 (0.60 to 0.80) |" in table


def test_means_at_equal_env_steps_and_minutes_end_with_the_shortest_run(
    comparison: ModuleType,
) -> None:
    short = record(0.2, 0.4)
    short["step_1"]["elapsed_time"] = 300.0
    seeds = {"a": {"seed_1": record(0.2, 0.4, 0.6)}, "b": {"seed_1": short}}
    runs = comparison.read_groups({"mapush": {"box": seeds}})
    table = comparison.equal_table(runs).splitlines()
    assert table[0] == "|  | box: 2 M | 3.0 min |"
    assert table[2:] == ["| A | 0.40 | 0.60 |", "| B | 0.40 | 0.30 |"]
    assert comparison.hours_table(runs).splitlines()[2] == "| box | 2 | 2, 3 M | 4.0 | 5 M | 0.1 |"


def test_an_improvement_in_both_tasks_is_bold(comparison: ModuleType) -> None:
    seeds = {
        name: {f"seed_{k}": record(value) for k, value in enumerate(values)}
        for name, values in {
            "a": (0.9, 0.8, 0.7),
            "b": (0.6, 0.5, 0.4),
            "c": (0.9, 0.1, 0.2),
        }.items()
    }
    one = comparison.read_groups({"mapush": {"box": seeds}})
    assert comparison.pair_table(one).splitlines()[2] == "| A |  | 1.00 | 0.72 |"
    both = comparison.read_groups({"mapush": {"box": seeds, "team2": seeds}})
    a_row, b_row, _ = comparison.pair_table(both).splitlines()[2:]
    assert a_row == "| A |  | **1.00** | 0.72 |"
    assert b_row == "| B | **0.00** |  | 0.67 |"


def test_three_runs_of_three_beat_as_many_by_chance_in_one_comparison_of_ten(
    comparison: ModuleType,
) -> None:
    sure = (np.array([0.9, 0.8, 0.7]), np.array([0.6, 0.5, 0.4]))
    assert comparison.chance([sure]) == 2 / 20
    assert comparison.chance([sure, sure]) == 2 / 400
    assert comparison.chance([(sure[0], sure[0])]) == 1.0
    assert comparison.chance([sure] * 4) == 2 / 20**4


def test_holm_multiplies_each_p_value_by_those_that_are_not_smaller(comparison: ModuleType) -> None:
    assert comparison.holm([0.04, 0.01, 0.5, 0.03]) == pytest.approx([0.09, 0.04, 0.5, 0.09])
    assert comparison.holm([0.9, 0.8]) == [1.0, 1.0]


def test_two_tasks_are_compared_algorithm_by_algorithm(comparison: ModuleType) -> None:
    shared, separate = (
        {f"seed_{k}": record(value) for k, value in enumerate(values)}
        for values in ((0.9, 0.8, 0.7), (0.6, 0.5, 0.4))
    )
    records = {"one": {"a": shared, "b": shared}, "many": {"b": separate, "a": separate}}
    table = comparison.task_pair_table(comparison.read_groups({"mapush": records})).splitlines()
    assert table[0] == "|  | one | many | one beats many | p |"
    assert table[2] == "| A | 0.80 (0.70 to 0.90) | 0.50 (0.40 to 0.60) | 1.00 | 0.100 |"
    assert table[4] == "| all |  |  | 1.00 | 0.005 |"


def test_a_contrast_pools_its_pairs_within_tasks(
    comparison: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "CONTRASTS", {"a against b": (("a", "b"), ("c", "d"))})
    values = {"a": (0.9, 0.8, 0.7), "b": (0.6, 0.5, 0.4), "c": (0.3,), "d": (0.3,)}
    seeds = {
        name: {f"seed_{k}": record(value) for k, value in enumerate(successes)}
        for name, successes in values.items()
    }
    runs = comparison.read_groups({"mapush": {"box": seeds, "team2": {"a": seeds["a"]}}})
    table = comparison.contrast_table(runs).splitlines()
    assert table[2:] == ["| a against b | 0.75 |  | 0.75 | 0.100 |"]


def test_the_health_of_runs_is_that_of_all_their_seeds(comparison: ModuleType) -> None:
    seeds = {f"seed_{k}": record(0.9) for k in range(2)}
    for seed, largest, success in zip(seeds.values(), (0.5, 0.2), (0.3, 0.4), strict=True):
        seed["step_0"]["training_success"] = [success]
        seed["absolute_metrics"] |= {"median_kl": [largest / 10], "largest_kl": [largest]}
        seed["absolute_metrics"] |= {"first_deviation": [0.7], "last_deviation": [success]}
    row = "| HAPPO | 0.035, 0.500 | 0.70 to 0.30, 0.40 | 0.15, 0.20 | 0.30, 0.40 |"
    assert comparison.health_table({"happo": seeds}).splitlines()[2] == row


@pytest.mark.parametrize("name", ["algorithms", "cores", "leader", "separate"])
def test_the_shipped_records_are_of_algorithms_and_tasks_in_the_plan(
    name: str, comparison: ModuleType, tmp_path: Path
) -> None:
    records = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    everything = Namespace(out=tmp_path, tasks=[], algorithms=[], seeds=[], set=[])
    plan = {
        (job.task, job.algorithm, f"seed_{job.seed}")
        for job in comparison.jobs(load_yaml(BENCHMARKS / f"{name}.yaml"), everything)
    }
    for task, groups in comparison.read_groups(records).items():
        for group in groups:
            assert {(task, group.name, str(log.folder)) for log in group.runs} <= plan


def test_the_cost_is_that_of_runs_without_a_table(comparison: ModuleType, tmp_path: Path) -> None:
    everything = Namespace(out=tmp_path, tasks=[], algorithms=[], seeds=[], set=[])
    todo = list(comparison.jobs(load_yaml(plan(tmp_path)), everything))
    assert comparison.cost(todo, 2) == (
        "2 of 2 runs are to do: 0 M env steps, some 0.0 hours of a device, 0.0 hours on 2"
    )
    on_box = list(comparison.jobs(load_yaml(comparison.SPEC), everything))[:2]
    (on_box[0].folder / "checkpoints.csv").parent.mkdir(parents=True)
    (on_box[0].folder / "checkpoints.csv").touch()
    assert comparison.cost(on_box, 1).startswith("1 of 2 runs are to do: 20 M env steps, ")


def test_every_algorithm_in_the_plan_is_tuned_by_as_many_trials(
    comparison: ModuleType, tmp_path: Path
) -> None:
    everything = Namespace(out=tmp_path, tasks=[], algorithms=[], seeds=[1], set=[])
    compared = {job.algorithm for job in comparison.jobs(load_yaml(comparison.SPEC), everything)}
    trials = list(comparison.jobs(load_yaml(BENCHMARKS / "tuning.yaml"), everything))
    for algorithm in compared:
        settings = [job.train for job in trials if job.algorithm == algorithm]
        assert len(set(settings)) == 3
    assert len(trials) == 3 * len(compared)
    assert len({(job.num_env_steps, job.algorithm) for job in trials}) == len(compared)


def test_trials_have_a_column_each_with_every_seed_in_training(comparison: ModuleType) -> None:
    seeds = {f"seed_{k}": record(0.9) for k in range(2)}
    for seed, value in zip(seeds.values(), (0.3, 0.4), strict=True):
        seed["step_0"]["training_success"] = [value]
    records = {"mapush": {trial: {"happo": seeds} for trial in ("half", "family")}}
    table = comparison.trials_table(comparison.read_groups(records))
    assert table.splitlines()[0] == "|  | setting | half | family |"
    setting = "`algorithm.desired_kl`: 0.01, 0.02, 0.04"
    assert table.splitlines()[2] == f"| HAPPO | {setting} | 0.30, 0.40 | 0.30, 0.40 |"


def plan(folder: Path) -> Path:
    """Write a plan of two short runs."""
    path = folder / "plan.yaml"
    path.write_text(
        json.dumps(
            {
                "seeds": [1],
                "num_episodes": 1,
                "imports": {"haspo": "examples.own_algorithm"},
                "families": {
                    "on-policy": {
                        "preset": "smoke",
                        "algorithms": ["haspo", "mappo"],
                        "settings": {"sim.name": "mujoco", "runner.checkpoint_interval": 60_000},
                    }
                },
                "tasks": {
                    "box": {
                        "minutes": 1,
                        "suite": "reference",
                        "test": {"task.episode_length_s": 1.0},
                        "settings": {},
                        "budgets": {"on-policy": {"runner.num_env_steps": 60_000}},
                    }
                },
            }
        )
    )
    return path


@pytest.mark.slow
def test_a_killed_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "benchmarks/algorithms.py", str(out), "--spec", str(plan(tmp_path))]
    words += ["--devices", "cpu"]
    first = out / "box" / "haspo_1"
    with subprocess.Popen(words, cwd=ROOT) as process:
        log = first.with_suffix(".log")
        while not log.is_file() or " env steps " not in log.read_text():
            assert process.poll() is None
            time.sleep(0.2)
        process.kill()
    wait_until_saved(first)
    ((saved, _),) = run_folder.checkpoints(first)
    assert 0 < saved < 60_000

    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0
    points = read_points(first)["mapush/num_episodes"]
    steps = [point.step for point in points]
    assert set(np.diff(steps)) == {steps[0]}  # nothing lost, nothing twice
    assert steps[-1] >= 60_000

    tables = {path: path.stat().st_mtime_ns for path in out.glob("box/*/checkpoints.csv")}
    assert len(tables) == 2
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0
    assert tables == {path: path.stat().st_mtime_ns for path in tables}
    assert "| HASPO | 1 |" in (out / "algorithms.md").read_text()
