"""A quick part of tests/faults, whose scripts try the same for longer by hand."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import TINY

from harl_mapush import train

FAULTS = Path(__file__).parent / "faults"


def test_killed_runs_end_bit_equal() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FAULTS.parent.parent), *sys.path])}
    words = [sys.executable, str(FAULTS / "kill.py"), "--runs", "1", "--iterations", "4"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()[1:]] == ["1", "1", "1"]


def test_damage_is_noticed(gait, tmp_path, monkeypatch, capsys) -> None:
    run = tmp_path / "run"
    every = ("--set", "runner.checkpoint_interval=32", "--set", "task.decision_period=2", "--num_env_steps", "64")
    assert train.main([*TINY, *every, "--set", f"task.gait={gait}", "--out", str(run)]) == 0
    shutil.copytree(gait, run / "checkpoints" / "notes")  # a folder of another name is no checkpoint
    monkeypatch.syspath_prepend(str(FAULTS))
    damage = importlib.import_module("damage")
    assert damage.try_files(run, random.Random(0), truncations=2, flips=4)
    assert capsys.readouterr().out.count("6        6        0         0          6 of 6") == 3
