"""A simulator registered in one file is listed, planned, run and measured like ours."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from harl_mapush import config, test, train
from harl_mapush.config import user_modules
from mqe.registry import SIMULATORS
from tests.support.tiny_runs import TINY

OWN = """
import mapush
from mqe.registry import SimulatorEntry
from mqe.sim.mujoco_batch import MujocoBatchSimulator


class Mine(MujocoBatchSimulator):
    num_made = 0


def make(model, num_envs, cfg, device):
    Mine.num_made += 1
    return Mine(model, num_envs, cfg.num_threads)


mapush.register_simulator("mine", SimulatorEntry(make, runs_on_gpu=False))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_simulator.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_modules, "IMPORTED", [])
    before = dict(SIMULATORS)
    yield "own_simulator"
    SIMULATORS.clear()
    SIMULATORS.update(before)
    sys.modules.pop("own_simulator", None)


def test_a_simulator_of_ones_own_is_run_and_measured(module, capsys) -> None:
    words = ["--import", module, "--sim", "mine", *TINY]
    assert train.main([*words, "--num_env_steps", "1", "--out", "run"]) == 0
    assert "(mine)" in capsys.readouterr().out
    mine = importlib.import_module(module).Mine
    assert mine.num_made == 1
    cfg, _ = config.resolve(config.load_preset("run/config.yaml"), {})
    assert cfg.sim.name == "mine"
    measure = ["run", "--import", module, "--num_envs", "2", "--json", "metrics.json"]
    measure += ["--sim", "mine", "--set", "task.episode_length_s=0.2"]
    assert test.main(measure) == 0
    assert json.loads(Path("metrics.json").read_text())["num_episodes"] == 2
    assert mine.num_made > 1


def test_an_unknown_simulator_names_ours(module, capsys) -> None:
    assert train.main(["--sim", "mujocco", *TINY]) == 2
    assert "did you mean mujoco?" in capsys.readouterr().err
