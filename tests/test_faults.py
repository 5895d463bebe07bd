"""Short runs of the scripts in tools/faults."""

from __future__ import annotations

import importlib
import random
import shutil
import sys

import pytest

from harl_mapush import experiment, test, train
from tests.support.fault_scripts import FAULTS
from tests.support.paths import EXTENSIONS
from tests.support.tiny_runs import TINY


@pytest.mark.slow
def test_killed_runs_end_bit_equal(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(FAULTS))
    monkeypatch.setattr(sys, "argv", ["kill.py", "--runs", "1", "--iterations", "2"])
    assert importlib.import_module("kill").main() == 0
    table = capsys.readouterr().out
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["1", "1", "1"]


@pytest.mark.parametrize(
    ("listed", "taken"),
    [
        (["7, 300", "8, 50", "7, 20"], 320.0),
        (["8, 50"], 0.0),
        ([], 6372.0),  # in a container: all of the GPU
    ],
)
def test_a_soak_knows_the_memory_of_its_gpu(listed: list[str], taken: float, monkeypatch) -> None:
    monkeypatch.syspath_prepend(FAULTS)
    soak = importlib.import_module("soak")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    answers = {
        "--query-compute-apps=pid,used_memory": listed,
        "--query-gpu=memory.used -i 1": ["6372"],
    }
    monkeypatch.setattr(soak, "query", lambda *words: answers[" ".join(words)])
    assert soak.gpu_memory(7) == taken


@pytest.mark.skipif(not EXTENSIONS.is_dir(), reason="the script tries extensions as well")
@pytest.mark.filterwarnings("ignore")  # of torch, about tensors that are on their way out
@pytest.mark.parametrize("num_cases", [25, pytest.param(250, marks=pytest.mark.slow)])
def test_nonsense_is_one_line(monkeypatch, capsys, num_cases: int) -> None:
    # The script puts others in their places.
    for module, name in (
        (experiment, "run"),
        (test, "_play"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.syspath_prepend(str(FAULTS))
    answered = importlib.import_module("fuzz").run_cases(num_cases, seed=0)
    assert answered, capsys.readouterr().err


@pytest.mark.slow
def test_damage_is_noticed(gait, tmp_path, monkeypatch, capsys) -> None:
    run = tmp_path / "run"
    every = (
        "--set",
        "runner.checkpoint_interval=32",
        "--set",
        "task.decision_period=2",
        "--num_env_steps",
        "64",
    )
    assert train.main([*TINY, *every, "--set", f"task.gait={gait}", "--out", str(run)]) == 0
    # A folder of another name is no checkpoint.
    shutil.copytree(gait, run / "checkpoints" / "notes")
    monkeypatch.syspath_prepend(str(FAULTS))
    damage = importlib.import_module("damage")
    assert damage.try_files(run, random.Random(0), truncations=2, flips=4)
    assert capsys.readouterr().out.count("6        6        0         0          6 of 6") == 4
