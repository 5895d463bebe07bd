"""A sweep from start to end: killed during two trainings, and continued."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from harl_mapush import test, train
from harl_mapush.runs import run_folder
from mapush import cli
from mqe.config import ConfigError
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow


def is_training(run: Path) -> bool:
    """Return whether a process trains in a run's folder."""
    try:
        with run_folder.locked(run):
            return False
    except ConfigError:
        return True


def test_a_killed_sweep_goes_on(gait, tmp_path, capsys) -> None:
    pytest.importorskip("optuna")
    settings = {
        "env": {"num_envs": 4},
        "network": {"hidden_sizes": [8]},
        "task": {"gait": str(gait), "decision_period": 2, "episode_length_s": 0.2},
        "runner": {"num_env_steps": 4800, "num_steps": 4, "checkpoint_interval": 160},
    }
    keys = {
        "preset": "smoke",
        "settings": settings,
        "num_trials": 2,
        "stopping": False,
        "metric": "mapush/return",
    }
    varied = {"algorithm.clip_param": {"range": [0.1, 0.2]}}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(keys | {"space": varied}, sort_keys=False))
    out = tmp_path / "sweep"
    begin = [
        sys.executable,
        "-m",
        "mapush",
        "sweep",
        str(tmp_path / "space.yaml"),
        "--out",
        str(out),
        "--jobs",
        "2",
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    with (tmp_path / "log").open("w") as log:
        sweep = subprocess.Popen(begin, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not list(out.glob("trials/*/checkpoints/320")) and time.monotonic() < deadline:
            assert sweep.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        begun = [path.parent for path in out.glob("trials/*/checkpoints")]
        assert any(is_training(run) for run in begun)
    finally:
        sweep.kill()
        sweep.wait()
    deadline = time.monotonic() + 60
    while any(is_training(run) for run in begun) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [run for run in begun if is_training(run)]

    done = subprocess.run(
        [*begin[:4], str(out)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    from mapush.extensions.sweep.space import reread_space
    from mapush.extensions.sweep.study import open_study

    trials = open_study(out, reread_space(out, {})).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    assert [trial.last_step for trial in trials] == [4800] * 2
    runs = [out / "trials" / f"{number:04d}" for number in range(2)]
    assert any("resumes at" in (run / "output.log").read_text() for run in runs)

    trial = str(runs[0])
    assert train.main(["--resume", trial]) == 0
    assert (
        test.main(
            ["--checkpoint", trial, "--num_envs", "4", "--json", str(tmp_path / "figures.json")]
        )
        == 0
    )
    assert cli.main(["report", *map(str, runs), "--out", str(tmp_path / "curves.png")]) == 0
