"""Installed HARL's defaults, updates and configurations against ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from harl_mapush import test, train
from harl_mapush.runs import checkpoint
from mapush.extensions.harl.harl_files import apply, read
from mqe.tensor_files import read_tensors
from tests.harl_mapush.clients.harl.test_harl_client import upstream_run
from tests.support.paths import ROOT
from tests.support.rounding import FEW_STEPS
from tests.support.upstream import HARL, needs_checkout
from tests.support.upstream_folders import upstream_file

LEARNER = ROOT / "benchmarks" / "learner.py"


@pytest.mark.slow
@needs_checkout
def test_upstream_takes_our_checkpoints_and_we_its_configuration(tmp_path, capsys) -> None:
    first = upstream_run(tmp_path / "first", "happo")
    ours = tmp_path / "ours"
    assert (
        train.main(
            ["--load_config", str(first / "config.json"), "--out", str(ours), "--device", "cpu"]
        )
        == 0
    )
    folder = checkpoint.resolve(str(ours))
    second = upstream_run(tmp_path / "second", "happo", "--model_dir", str(folder), "--lr", "0.0")
    # Loaded strictly, and not moved at a learning rate of 0.
    for name in (
        "actor_agent0.pt",
        "actor_agent1.pt",
    ):
        mine, theirs = (read_tensors(path / name) for path in (folder, second / "models"))
        assert set(mine) == set(theirs)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    critic = read_tensors(second / "models" / "critic_agent.pt")
    assert set(critic) == set(read_tensors(folder / "critic_agent.pt"))


# Recordings hold these updates as well.
@pytest.mark.slow
@needs_checkout
@pytest.mark.parametrize("algos", [["happo", "hatrpo"], ["haa2c", "mappo"]])
def test_the_same_update_gives_the_same_weights(algos: list[str]) -> None:
    """The benchmark replaces modules of HARL, and so has a process of its own."""
    words = ["--harl", str(HARL), "--threads", "1", "--num_envs", "4", "--num_steps", "10"]
    words += ["--num_agents", "3", "--iterations", "1", "--allocator", "default"]
    lines = []
    for algo in algos:
        command = [sys.executable, str(LEARNER), "--algo", algo, *words]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        lines += ended.stdout.splitlines()
    differences = [facts["weights_max_difference"] for facts in map(json.loads, lines[2::3])]
    assert len(differences) == len(algos)
    assert max(differences) <= FEW_STEPS


@needs_checkout
@pytest.mark.parametrize("algo", ["happo", "hatrpo", "mappo", "haa2c"])
def test_files_of_upstream_have_every_key_with_an_effect(algo: str) -> None:
    path = Path(str(HARL)) / "harl" / "configs" / "algos_cfgs" / f"{algo}.yaml"
    theirs = yaml.safe_load(path.read_text())
    ours = upstream_file(algo, {})
    for section in ("seed", "train", "model", "algo"):
        assert ours[section].keys() <= theirs[section].keys()
    sections, _ = apply({}, {}, read(path))
    assert sections["algorithm"]["gamma"] == theirs["algo"]["gamma"]


@needs_checkout
@pytest.mark.slow
@pytest.mark.parametrize("algo", ["happo", "hasac", "hatrpo", "mappo", "hatd3"])
def test_upstreams_runners_train_and_we_measure_them(algo: str, tmp_path, capsys) -> None:
    run = upstream_run(tmp_path, algo)
    assert "[MAPush Stats]" in capsys.readouterr().out
    content = json.loads((run / "config.json").read_text())
    assert (content["main_args"]["env"], content["env_args"]["object"]) == ("mapush", "cuboid")
    out = tmp_path / "figures.json"
    argv = [
        "--checkpoint",
        str(run / "models"),
        "--num_envs",
        "2",
        "--device",
        "cpu",
        "--team_only",
        "--set",
        "task.episode_length_s=0.4",
        "--json",
        str(out),
    ]
    assert test.main(argv) == 0
    assert json.loads(out.read_text())["num_episodes"] == 2
