"""``mapush export --for policy``: averages a run's last checkpoints into one checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harl_mapush import test, train
from harl_mapush.runs import checkpoint, durable, resume, run_folder
from mapush import cli
from mapush.export import policy_folder
from mqe.config import ConfigError
from mqe.manifest import MANIFEST, damage
from mqe.tensor_files import read_tensors
from tests.support.tiny_runs import TINY

EXPORT = ("export", "--for", "policy")


def average(folders: list[Path], out: Path) -> None:
    with durable.new_folder(out) as partial:
        policy_folder.average(folders, partial)


class Numbers(nn.Module):
    """A network with given outputs and a call counter."""

    def __init__(self, *numbers: float, count: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(numbers))
        self.count: Tensor
        self.register_buffer("count", torch.tensor(count))


def save(run: Path, env_steps: int, first: Numbers, second: Numbers) -> Path:
    networks = {
        "actor_agent0": first,
        "actor_agent1": second,
        "critic_agent": Numbers(float(env_steps)),
    }
    state = {"env_steps": env_steps}
    return checkpoint.save(run, env_steps, networks, state, named_files={"task.gait": "walks"})


@pytest.fixture
def run(tmp_path) -> Path:
    """A run with three checkpoints of two robots."""
    with run_folder.new_run_dir(tmp_path / "run") as path:
        run_folder.write_config(path, "env: {num_agents: 2}\n")
    for steps, weight in ((9_000, 100.0), (10_000, 1.0), (11_000, 4.0)):
        save(path, steps, Numbers(weight, -weight, count=steps), Numbers(2.0 * weight, 0.5))
    return path


def test_the_mean_is_of_the_last_ones_by_steps_not_by_name(run, tmp_path, capsys) -> None:
    out = tmp_path / "mean"
    assert cli.main([*EXPORT, str(run), str(out), "--last", "2"]) == 0
    first, second = (read_tensors(out / checkpoint.actor_file(agent)) for agent in (0, 1))
    assert first["weight"].tolist() == [2.5, -2.5]
    assert first["count"].item() == 11_000  # counts are not averaged
    assert second["weight"].tolist() == [5.0, 0.5]
    assert read_tensors(out / "critic_agent.pt")["weight"].item() == 11_000.0  # the last one's
    assert capsys.readouterr().out == f"The mean of 10k, 11k.\n{out}: done.\n"


def test_means_are_rounded_once(run) -> None:
    """0.1 + 0.2 + 0.3 has another sum in single precision than in double."""
    numbers = [0.1, 0.2, 0.3, 1e8, -1e8]
    folders = [
        save(run, 20_000 + i, Numbers(number), Numbers(number)) for i, number in enumerate(numbers)
    ]
    average(folders, run / "mean")
    exact = torch.tensor(numbers).double().mean()
    assert read_tensors(run / "mean" / "actor_agent0.pt")["weight"].item() == exact.float().item()


def test_it_is_a_checkpoint_from_which_no_run_resumes(run, tmp_path) -> None:
    out = tmp_path / "new" / "mean"
    assert cli.main([*EXPORT, str(run), str(out), "--last", "3"]) == 0
    assert checkpoint.resolve(out) == out
    assert damage(out) is None
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["average_of"] == ["9k", "10k", "11k"]
    assert manifest["named_files"] == {"task.gait": "walks"}
    assert sorted(path.name for path in out.iterdir()) == sorted([*manifest["files"], MANIFEST])
    assert checkpoint.TRAINING_STATE not in manifest["files"]
    with pytest.raises(
        ConfigError,
        match="neither a run nor a checkpoint in a run's folder; .* with --init_from",
    ):
        resume.find(str(out))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("RUN OUT --last 4", "has 3 of the 4 checkpoints; name a run folder with more, or lower"),
        ("RUN OUT --last 0", "--last 0: must be at least 1"),
        ("RUN RUN --last 2", "exists; name another folder"),
        ("RUN/nothing OUT", "does not exist"),
        ("pretrained:cuboid OUT --last 2", "has 0 of the 2 checkpoints"),
        ("RUN OUT --last 2 --for onnx", "1 without --for policy; leave it out"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    run, tmp_path, words: str, said: str, capsys
) -> None:
    out = tmp_path / "mean"
    assert (
        cli.main([*EXPORT, *words.replace("RUN", str(run)).replace("OUT", str(out)).split()]) == 2
    )
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("damaged", "damaged"),
        ("damaged critic", "critic_agent.pt: damaged"),
        ("not a number", "not finite"),
        ("another shape", "shapes differ"),
        ("a robot less", "incomplete"),
    ],
)
def test_a_checkpoint_that_cannot_be_averaged_leaves_nothing(run, how: str, said: str) -> None:
    folder = save(
        run, 12_000, Numbers(1.0, 1.0), Numbers(1.0, float("nan" if how == "not a number" else 1.0))
    )
    actor = folder / checkpoint.actor_file(1)
    if how == "damaged":
        actor.write_bytes(actor.read_bytes()[:-20])
    elif how == "another shape":
        save(run, 12_000, Numbers(1.0, 1.0), Numbers(1.0))
    elif how == "a robot less":
        actor.unlink()
    last = save(run, 13_000, Numbers(1.0, 1.0), Numbers(1.0, 1.0))
    if how == "damaged critic":  # the last one's, which goes with the mean
        (last / "critic_agent.pt").write_bytes(b"half of it")
    before = sorted(run.iterdir())
    with pytest.raises(ConfigError) as caught:
        average([folder, last], run / "mean")
    assert said in str(caught.value)
    assert ("13k" if how == "damaged critic" else "12k") in str(caught.value)
    assert sorted(run.iterdir()) == before


def test_the_mean_of_a_real_run_plays(gait, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    out = tmp_path / "mean"
    words = [
        "--num_env_steps",
        "160",
        "--set",
        f"task.gait={gait}",
        "--set",
        "runner.checkpoint_interval=80",
    ]
    assert train.main([*TINY, *words, "--out", str(run)]) == 0
    assert cli.main([*EXPORT, str(run), str(out), "--last", "2"]) == 0
    capsys.readouterr()
    assert (
        test.main(
            ["--checkpoint", str(out), "--num_envs", "1", "--set", "task.episode_length_s=0.2"]
        )
        == 0
    )
    assert "success rate" in capsys.readouterr().out
