"""Run files after a power loss, a flipped bit or a kill: whole, or an error with the damaged file's
name.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from harl_mapush import test, train
from harl_mapush.runner import Runner
from harl_mapush.runs import checkpoint, durable, run_folder
from mqe.config import ConfigError
from mqe.controllers.gait import load_gait
from mqe.manifest import MANIFEST, damage
from mqe.tensor_files import read_tensors
from tests.support.tiny_runs import TINY

FILES = (
    *("actor_agent0.pt", "actor_agent1.pt", "config.yaml", "critic_agent.pt", "policy.yaml"),
    *("training_state.pt", "value_normalizer.pt"),
)


@pytest.fixture(scope="module")
def finished(gait, tmp_path_factory) -> Path:
    """Two iterations of the push task, with a checkpoint after each."""
    out = tmp_path_factory.mktemp("finished") / "run"
    every = (
        "--set",
        "runner.checkpoint_interval=32",
        "--set",
        "task.decision_period=2",
        "--num_env_steps",
        "64",
    )
    assert train.main([*TINY, *every, "--set", f"task.gait={gait}", "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def new_run(tmp_path) -> Path:
    path = tmp_path / "new"
    with run_folder.new_run_dir(path):
        run_folder.write_config(path, "env: {num_agents: 1}\n")
    return path


def flip(path: Path, fraction: float = 0.5) -> None:
    contents = bytearray(path.read_bytes())
    contents[int(fraction * len(contents))] ^= 1
    path.write_bytes(contents)


def save(run: Path, env_steps: int = 1000) -> Path:
    parts = (nn.Linear(3, 2), nn.Linear(4, 1), nn.BatchNorm1d(1))
    networks = dict(zip(("actor_agent0", "critic_agent", "value_normalizer"), parts, strict=True))
    return checkpoint.save(run, env_steps, networks, {"iteration": 1})


# On the disk


def test_files_are_on_the_disk_before_they_get_their_name_and_the_name_after(
    new_run, monkeypatch
) -> None:
    events: list[tuple[str, str]] = []
    rename = Path.rename
    fsync = os.fsync

    def note_rename(path: Path, target: Path) -> Path:
        events.append(("rename", target.name))
        return rename(path, target)

    def note_fsync(descriptor: int) -> None:
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(os, "fsync", note_fsync)
    folder = save(new_run)
    renamed = events.index(("rename", "1k"))
    synced = {name for what, name in events[:renamed] if what == "sync"}
    assert {path.name for path in folder.iterdir()} <= synced
    assert any(name.startswith(".1k-") for name in synced)
    assert ("sync", "checkpoints") in events[renamed:]


def test_settings_are_on_the_disk_before_they_replace_the_old(new_run, monkeypatch) -> None:
    events = []
    replace = Path.replace
    fsync = os.fsync
    monkeypatch.setattr(
        Path, "replace", lambda *names: (events.append("replace"), replace(*names))[1]
    )
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (events.append("sync"), fsync(descriptor))[1]
    )
    run_folder.write_config(new_run, "env: {num_agents: 1}\n")
    assert events == ["sync", "replace", "sync"]


def test_a_file_system_that_cannot_sync_folders_is_no_obstacle(tmp_path, monkeypatch) -> None:
    tried = []

    def refuse(descriptor: int) -> None:
        tried.append(descriptor)
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    durable.sync(tmp_path)
    assert len(tried) == 1


def test_a_kill_while_a_checkpoint_is_replaced_leaves_the_old_or_the_new(
    new_run, monkeypatch
) -> None:
    class KilledError(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    save(new_run)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process tidies nothing
    monkeypatch.setattr(Path, "rename", kill)
    with pytest.raises(KilledError):
        save(new_run)
    assert damage(new_run / "checkpoints" / "1k") is None


# The manifest


def test_a_manifest_has_a_checksum_of_every_file_and_what_wrote_them(run) -> None:
    folder = run / "checkpoints" / "64"
    written = json.loads((folder / MANIFEST).read_text())
    assert tuple(written["files"]) == FILES
    assert {path.name for path in folder.iterdir()} == {*FILES, MANIFEST}
    assert written["format_version"] == 1
    assert written["packages"]["torch"] == torch.__version__
    assert written["device"] == "cpu"
    assert {"python", "platform", "git_revision"} <= set(written)
    assert damage(folder) is None


@pytest.mark.parametrize("name", ["actor_agent1.pt", "config.yaml"])
def test_an_evaluation_names_the_file_that_is_damaged(name: str, run, capsys) -> None:
    flip(run / "checkpoints" / "64" / name)
    assert test.main(["--checkpoint", str(run)]) == 2
    assert (
        f"{name}: damaged (its SHA-256 is not the one in manifest.json)" in capsys.readouterr().err
    )


def test_a_digit_of_a_setting_is_enough(run, capsys) -> None:
    path = run / "checkpoints" / "64" / "config.yaml"
    path.write_text(path.read_text().replace("success_radius: 1.0", "success_radius: 1.1"))
    assert test.main(["--checkpoint", str(path.parent)]) == 2
    assert "config.yaml: damaged" in capsys.readouterr().err


def test_a_gait_is_checked_as_well(gait, tmp_path) -> None:
    shutil.copytree(gait, tmp_path / "gait")
    load_gait(str(tmp_path / "gait"), torch.device("cpu"))
    flip(tmp_path / "gait" / "policy.yaml", 0.9)
    with pytest.raises(ConfigError, match=r"policy\.yaml: damaged"):
        load_gait(str(tmp_path / "gait"), torch.device("cpu"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format_version": 1}', '{"format_version": 1, "files": [1]}']
)
def test_a_damaged_manifest_is_one_line(text: str, run) -> None:
    (run / "checkpoints" / "64" / MANIFEST).write_text(text)
    with pytest.raises(ConfigError, match=r"manifest\.json: damaged"):
        checkpoint.resolve(str(run))


def test_a_later_format_is_named(run) -> None:
    path = run / "checkpoints" / "64" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 2}))
    with pytest.raises(
        ConfigError, match="written in format 2, this version of mapush reads format 1"
    ):
        checkpoint.resolve(str(run))


def test_checkpoints_without_a_manifest_are_read_as_before(run) -> None:
    for path in run.rglob(MANIFEST):
        path.unlink()
    assert checkpoint.resolve(str(run)).name == "64"
    assert train.main(["--resume", str(run / "checkpoints" / "32")]) == 0
    assert (run / "checkpoints" / "64" / MANIFEST).is_file()


# The newest whole checkpoint


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_damaged_newest_checkpoint_is_passed_over(name: str, run, monkeypatch, capsys) -> None:
    learned_from = []

    def note(runner: Runner, *_: object) -> None:
        learned_from.append(runner.progress.env_steps)

    monkeypatch.setattr(Runner, "learn", note)
    path = run / "checkpoints" / "64" / name
    path.write_bytes(path.read_bytes()[:40])
    assert train.main(["--resume", str(run)]) == 0
    assert learned_from == [32]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note: ")]
    assert f"{path.parent} is skipped: " in lines[0]
    assert name in lines[0]


def test_settings_of_the_run_that_are_damaged_are_those_of_the_checkpoint(
    run, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(Runner, "learn", lambda *_: None)
    path = run / "config.yaml"
    whole = path.read_text()
    for damaged in ("", whole.replace("num_env_steps: 64", "num_env_steps: 96"), None):
        path.unlink()
        if damaged is not None:
            path.write_text(damaged)
        assert train.main(["--resume", str(run), "--num_env_steps", "128"]) == 0
        assert "the settings are those of" in capsys.readouterr().out
        assert (
            path.read_text().splitlines()[1:]
            == whole.replace("steps: 64", "steps: 128").splitlines()[1:]
        )


# Killed before there is anything


def test_a_run_killed_before_its_settings_can_be_started_again(gait, tmp_path, capsys) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    assert train.main(["--resume", str(out)]) == 2
    assert f"start it again with --out {out}" in capsys.readouterr().err
    argv = [*TINY, "--num_env_steps", "1", "--set", f"task.gait={gait}", "--out", str(out)]
    assert train.main(argv) == 0
    assert train.main(argv) == 2
    assert f"already holds a run; resume it (--resume {out})" in capsys.readouterr().err


def test_a_run_killed_before_its_first_checkpoint_begins_again(run, finished, capsys) -> None:
    shutil.rmtree(run / "checkpoints")
    assert train.main(["--resume", str(run)]) == 0
    assert "has no checkpoint yet and starts again" in capsys.readouterr().out
    for name in ("actor_agent0.pt", "critic_agent.pt"):
        again, before = (
            read_tensors(path / "checkpoints" / "64" / name) for path in (run, finished)
        )
        assert all(torch.equal(again[key], value) for key, value in before.items())


# Names


def test_runs_that_begin_at_once_get_a_folder_each(tmp_path) -> None:
    path = tmp_path / "deep" / "seed-00001"
    made = []
    together = threading.Barrier(8)

    def begin() -> None:
        together.wait()
        with run_folder.new_run_dir(path, is_named=False) as folder:
            made.append(folder)
            together.wait()

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = ["seed-00001", *(f"seed-00001-{i}" for i in range(2, 9))]
    assert sorted(folder.name for folder in made) == names
    assert sorted(folder.name for folder in path.parent.iterdir()) == names


def test_a_folder_that_two_runs_name_belongs_to_the_first(tmp_path) -> None:
    with (
        run_folder.new_run_dir(tmp_path / "run"),
        pytest.raises(ConfigError, match="another process is training"),
        run_folder.new_run_dir(tmp_path / "run"),
    ):
        pass
