"""Policies that travel over the Hugging Face Hub, with a folder in its place."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harl_mapush.runs import checkpoint
from mapush.export import command
from mqe.config import ConfigError

NAME = "user/team"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder in the place of the Hub, and torch's files in that of safetensors."""
    folder = tmp_path / "hub"

    def upload_folder(repo_id: str, folder_path: Path) -> str:
        shutil.copytree(folder_path, folder / repo_id)
        return f"https://host/{repo_id}"

    def snapshot_download(name: str) -> str:
        if not (folder / name).is_dir():
            raise FileNotFoundError(f"no repository\n{name}")
        return str(folder / name)

    library = SimpleNamespace(
        create_repo=lambda name, exist_ok: None,
        upload_folder=upload_folder,
        snapshot_download=snapshot_download,
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    try:
        import safetensors.torch  # noqa: F401
    except ImportError:
        files = SimpleNamespace(  # by an open file, whose name torch does not see
            save_file=lambda tensors, path: torch.save(tensors, path.open("wb")),
            load_file=lambda path: torch.load(path.open("rb"), weights_only=True),
        )
        monkeypatch.setitem(sys.modules, "safetensors.torch", files)
    return folder


@pytest.mark.parametrize("team", ["cuboid", "any"])
def test_a_team_is_the_same_after_its_way_over_the_hub(hub, tmp_path, capsys, team: str) -> None:
    out = tmp_path / "out"
    words = [f"pretrained:{team}", str(out), "--for", "policy", "--hub", NAME]
    assert command.main(words) == 0
    assert capsys.readouterr().out == f"{out}: done.\nUploaded: https://host/user/team\n"
    fetched = checkpoint.resolve(f"hub:{NAME}")
    assert fetched == hub / NAME
    assert [path.name for path in fetched.glob("actor*.pt")] == []
    expected = checkpoint.read_actors(checkpoint.resolve(f"pretrained:{team}"))
    actors = checkpoint.read_actors(fetched)
    assert set(actors) == set(expected)
    for name, tensors in expected.items():
        assert all(torch.equal(actors[name][key], value) for key, value in tensors.items())
    again = [f"hub:{NAME}", str(tmp_path / "again"), "--for", "policy", "--hub", "user/copy"]
    assert command.main(again) == 0
    assert set(checkpoint.read_actors(checkpoint.resolve("hub:user/copy"))) == set(expected)
    from harl_mapush import test

    short = ["--num_envs", "2", "--set", "task.episode_length_s=0.2", "--device", "cpu"]
    assert test.main([f"hub:{NAME}", "--team_only", *short]) == 0


def test_mistakes_are_one_line(hub, tmp_path, capsys, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="hub:user/none: FileNotFoundError: no repository user/n"):
        checkpoint.resolve("hub:user/none")
    words = ["pretrained:cuboid", str(tmp_path / "out"), "--hub", NAME]
    assert command.main(words) == 2
    assert "needs --for policy" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"needs huggingface_hub .*; pip install '.\[hub"):
        checkpoint.resolve(f"hub:{NAME}")
