"""Runs of the push task with a learned model, from the command line to a resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from harl_mapush import train
from tests.support.nested import leaves
from tests.support.run_files import curves, state

pytestmark = pytest.mark.slow

SMALL = (
    "algorithm.warmup=64",
    "algorithm.batch_size=32",
    "algorithm.buffer_size=2048",
    "algorithm.ensemble.first_steps=16",
    "algorithm.ensemble.batch_size=32",
    "algorithm.ensemble.branches=16",
    "algorithm.ensemble.buffer_size=256",
    "algorithm.ensemble.ramp=100",
    "network.hidden_sizes=[16]",
    "runner.checkpoint_interval=640",
    "logger.interval=1",
    "runner.torch_threads=1",
    "runner.collectors=0",
    "sim.num_threads=1",
)


def command(out: Path, num_envs: int, *more: str) -> list[str]:
    sets = [word for setting in (*SMALL, *more) for word in ("--set", setting)]
    sizes = [
        "--num_envs",
        str(num_envs),
        "--num_env_steps",
        "1280",
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    return ["--preset", "laptop_hasac_model", *sizes, *sets]


def test_a_resumed_run_with_a_model_equals_one_that_never_stopped(tmp_path, capsys) -> None:
    through = tmp_path / "through"
    again = tmp_path / "again"
    assert train.main(command(through, 8)) == 0
    assert "[Model] error" in capsys.readouterr().out
    shutil.copytree(through, again)
    assert train.main(["--resume", str(again / "checkpoints" / "640")]) == 0
    ours = leaves(state(again, 1280))
    theirs = leaves(state(through, 1280))
    assert ours.keys() == theirs.keys()
    assert any("model.replay" in key for key in ours)
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            is_same = torch.equal(ours[key].nan_to_num(), value.nan_to_num())
        else:
            is_same = None
        assert is_same or (is_same is None and ours[key] == value), key
    assert {"model/inside_90", "model/error_goal_distance", "model/kept"} <= set(curves(again))
    assert curves(again) == curves(through)


def test_a_run_with_collectors_fits_its_model_beside_them(tmp_path, capsys) -> None:
    out = tmp_path / "run"
    assert train.main(command(out, 16, "runner.collectors=2")) == 0
    said = capsys.readouterr().out
    assert "[Learner]" in said
    assert "[Model] error" in said
    assert {"model/inside_90", "ingest/queue"} <= set(curves(out))
    assert (
        train.main(["--resume", str(out / "checkpoints" / "640"), "--num_env_steps", "1920"]) == 0
    )
    assert "Transitions: 256 sent, 256 received, 256 stored." in capsys.readouterr().out
