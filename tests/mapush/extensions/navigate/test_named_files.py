"""A map or a team changes between two sessions of a run."""

from __future__ import annotations

import json
import shutil

import pytest

from harl_mapush import test, train
from harl_mapush.runs import run_folder
from mqe.manifest import read_manifest, sha256

MAP = "{arena: [8, 8], maps: [{start: [-1.5, 0], goal: [1.5, 0]}]}\n"
TINY = (
    "--task go1push_upper --num_envs 1 --num_env_steps 4 --device cpu --set runner.num_steps=2 "
    "--set task.episode_length_s=0.5 --set network.hidden_sizes=[8] "
    "--set algorithm.num_minibatches=1"
).split()
CALCULATOR = "--num_episodes 1 --num_envs 1 --device cpu --team_only".split()


@pytest.mark.slow
def test_a_map_that_changed_is_noticed(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    map_file = tmp_path / "own.yaml"
    map_file.write_text(MAP)
    assert train.main([*TINY, "--set", "task.map=own.yaml", "--out", "run"]) == 0
    run = tmp_path / "run"
    start = json.loads((run / "origin.json").read_text())["starts"][-1]
    assert start["named_files"]["task.map"] == sha256(map_file)
    assert set(start["named_files"]) == {"task.map", "task.team"}

    last = run_folder.last_checkpoint(run)
    assert last is not None
    assert read_manifest(last)["named_files"] == start["named_files"]

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # the run has the absolute path
    capsys.readouterr()
    assert test.main([str(run), *CALCULATOR]) == 0
    assert "another one of that name" not in capsys.readouterr().out

    map_file.write_text(MAP.replace("1.5, 0]}", "1.4, 0]}"))
    assert test.main([str(run), *CALCULATOR]) == 0
    assert f"another one of that name {map_file}" in capsys.readouterr().out
    alone = shutil.copytree(last, tmp_path / "checkpoint")
    assert test.main([str(alone), *CALCULATOR]) == 0
    assert "another one of that name" in capsys.readouterr().out
    assert train.main(["--resume", str(run), "--num_env_steps", "8"]) == 0
    shown = capsys.readouterr()
    assert "the file or policy of task.map has changed" in shown.out + shown.err
