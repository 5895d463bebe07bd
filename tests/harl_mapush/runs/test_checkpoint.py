"""harl_mapush.runs.checkpoint and runs: written files, lookups and rejected checkpoints."""

from __future__ import annotations

from datetime import datetime

import pytest
import torch
from torch import nn

from harl_mapush.runs import checkpoint, run_folder
from mqe.config import ConfigError
from mqe.manifest import MANIFEST
from mqe.tensor_files import read_tensors


def networks(num_agents: int = 2) -> tuple[list[nn.Module], nn.Module, nn.Module]:
    return [nn.Linear(3, 2) for _ in range(num_agents)], nn.Linear(4, 1), nn.BatchNorm1d(1)


def named(actors, critic, normalizer) -> dict[str, nn.Module]:
    """As an algorithm names its networks."""
    return {f"actor_agent{i}": actor for i, actor in enumerate(actors)} | {
        "critic_agent": critic,
        "value_normalizer": normalizer,
    }


@pytest.fixture
def run(tmp_path):
    with run_folder.new_run_dir(tmp_path / "run") as path:
        run_folder.write_config(path, "env: {num_agents: 2}\ntask: {name: toy}\n")
    return path


@pytest.mark.parametrize(
    ("env_steps", "name"),
    [
        (10_000_000, "10M"),
        (500_000, "500k"),
        (1_000, "1k"),
        (1_500_000, "1500k"),
        (131_072, "131072"),
        (0, "0"),
    ],
)
def test_step_names_go_both_ways(env_steps: int, name: str) -> None:
    assert run_folder.step_name(env_steps) == name
    assert run_folder.parse_step_name(name) == env_steps


def test_other_names_are_no_steps() -> None:
    assert [run_folder.parse_step_name(name) for name in (".10M-77", "10G", "last", "M", "")] == [
        None
    ] * 5


def test_checkpoints_set_aside_again_keep_those_before(tmp_path) -> None:
    for name in ("500k", "1M", "1M.set-aside", "1M.set-aside-2"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [path.name for path in run_folder.set_aside_after(tmp_path, 500_000)] == [
        "1M.set-aside-3"
    ]
    assert [steps for steps, _ in run_folder.checkpoints(tmp_path)] == [500_000]


def test_default_run_dir() -> None:
    path = run_folder.default_run_dir("cuboid", "happo", "trial", 3, datetime(2026, 1, 2, 3, 4, 5))
    assert path.as_posix() == "results/mapush/cuboid/happo/trial/seed-00003-2026-01-02-03-04-05"


def test_saved_networks_come_back(run) -> None:
    actors, critic, normalizer = networks()
    folder = checkpoint.save(run, 500_000, named(actors, critic, normalizer), {"iteration": 4})
    assert sorted(path.name for path in folder.iterdir()) == [
        "actor_agent0.pt",
        "actor_agent1.pt",
        "config.yaml",
        "critic_agent.pt",
        "manifest.json",
        "training_state.pt",
        "value_normalizer.pt",
    ]
    assert folder.name == "500k"
    others, other_critic, other_normalizer = networks()
    checkpoint.load(folder, named(others, other_critic, other_normalizer))
    for old, new in zip(actors, others, strict=True):
        assert torch.equal(old.weight, new.weight)
    assert not torch.equal(others[0].weight, others[1].weight)
    assert torch.equal(critic.weight, other_critic.weight)
    flat = torch.load(folder / "critic_agent.pt", weights_only=True)
    assert list(flat) == ["weight", "bias"]
    assert torch.load(folder / "training_state.pt", weights_only=True) == {"iteration": 4}
    assert checkpoint.read_config(folder)["task"] == {"name": "toy"}


def test_damaged_files(run) -> None:
    folder = checkpoint.save(run, 1_000, named(*networks()))
    (folder / MANIFEST).unlink()  # as older ones are
    path = folder / "actor_agent0.pt"
    whole = path.read_bytes()
    offset = whole.index(read_tensors(path)["weight"].numpy().tobytes())
    one_bit = whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :]
    for contents in (b"", b"not a file of tensors", whole[: len(whole) // 2], one_bit):
        path.write_bytes(contents)
        with pytest.raises(ConfigError, match="damaged"):
            checkpoint.load(folder, named(*networks()))
        with pytest.raises(ConfigError, match="damaged"):
            checkpoint.read_actors(folder)
    path.write_bytes(whole)
    (folder / "critic_agent.pt").write_bytes(b"")
    checkpoint.read_actors(folder)  # whoever acts needs no critic
    for value in (
        [1, 2],
        {"weight": {"deep": torch.zeros(1)}},
        {"weight": torch.full((2, 3), torch.nan)},
    ):
        torch.save(value, path)
        with pytest.raises(ConfigError, match="damaged"):
            read_tensors(path)


def test_code_in_a_file_is_not_run(run, tmp_path) -> None:
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    folder = checkpoint.save(run, 1_000, named(*networks()))
    torch.save({"weight": Trap()}, folder / "actor_agent0.pt")
    with pytest.raises(ConfigError, match="damaged"):
        read_tensors(folder / "actor_agent0.pt")
    assert not (tmp_path / "sprung").exists()


def test_networks_of_another_shape(run) -> None:
    folder = checkpoint.save(run, 1_000, named(*networks()))
    with pytest.raises(ConfigError) as caught:
        checkpoint.load(folder, named([nn.Linear(5, 2), nn.Linear(5, 2)], *networks()[1:]))
    assert "does not fit" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_found(tmp_path) -> None:
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("")
    for what, said in [
        (str(tmp_path / "none"), "does not exist"),
        (str(tmp_path / "file"), "is not a folder"),
        (str(tmp_path / "empty"), "no checkpoint yet"),
        (str(tmp_path / "other"), "neither a run nor a checkpoint"),
        ("pretrained:x", "unknown pretrained policy 'x'"),
        ("pretrained:", "unknown pretrained"),
        ("pretrained:..", "unknown pretrained"),
    ]:
        with pytest.raises(ConfigError, match=said):
            checkpoint.resolve(what)


def test_a_run_folder_is_never_written_twice(run, tmp_path) -> None:
    def make(path) -> bool:
        with run_folder.new_run_dir(path):
            return path.is_dir()

    with pytest.raises(ConfigError, match="already holds a run"):
        make(run)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(ConfigError, match="is a file"):
            make(path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("mine")
    assert make(tmp_path / "notes")
