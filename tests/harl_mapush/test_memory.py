"""Runs that do not fit into the memory: one line with a number that fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harl_mapush import test as evaluate
from harl_mapush import train
from mqe import host_memory

GIB = 2**30


@pytest.fixture(autouse=True)
def little_memory(monkeypatch) -> None:
    monkeypatch.setattr(host_memory, "host_memory", lambda: GIB)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        # The worlds, a rollout, a replay buffer
        ("--preset laptop --num_envs 1000000", "env.num_envs"),
        ("--preset laptop --num_envs 16 --set runner.num_steps=1000000", "env.num_envs"),
        (
            "--preset laptop_hasac --set algorithm.buffer_size=50000000",
            "algorithm.buffer_size",
        ),
    ],
)
def test_training_that_does_not_fit_ends_before_it_begins(
    words: str, named: str, tmp_path: Path, capsys
) -> None:
    run = tmp_path / "run"
    assert train.main([*words.split(), "--device", "cpu", "--out", str(run)]) == 2
    said = capsys.readouterr().err
    pattern = rf"{named}=\d+ takes .* GiB, but cpu has 1.0 GiB free for it; lower {named} to \d+\n$"
    assert re.search(pattern, said)
    assert len(said.splitlines()) == 1
    assert not run.exists()


@pytest.mark.parametrize("mode", ["--mode calculator", "--mode viewer --record {folder}/film.mp4"])
def test_an_evaluation_that_does_not_fit_ends_before_it_begins(
    mode: str, tmp_path: Path, capsys
) -> None:
    words = ["--checkpoint", "pretrained:cuboid", "--num_envs", "1000000", "--device", "cpu"]
    words += ["--num_episodes", "1000000"]
    assert evaluate.main([*words, *mode.format(folder=tmp_path).split()]) == 2
    said = capsys.readouterr().err
    assert re.search(r"but cpu has 1.0 GiB free for it; lower env.num_envs to \d+\n$", said)
    assert not any(tmp_path.iterdir())
