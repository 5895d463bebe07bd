"""Files and names from an attacker, an accident or a typo: one line with the name, never a
traceback, a hang or a wrong result.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from harl_mapush import config, test, train
from harl_mapush.runs import checkpoint, provenance, run_folder
from mapush import listing
from mqe.config import ConfigError, load_yaml
from mqe.manifest import MANIFEST, damage, read_manifest
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.tensor_files import read_tensors
from tests.support.error_lines import error_line

DEEP = "[" * 100_000


@pytest.mark.parametrize("name", [".x", "", "..", "../x", "a..b", "a b", "x/y", "1x"])
def test_a_module_of_an_impossible_name(name: str, capsys) -> None:
    said = f"{name!r}: must be the dotted name of a module, as in my_package.my_module"
    assert train.main([f"--import={name}"]) == 2
    assert f"--import {said}" in error_line(capsys)
    if name:
        words = ["--checkpoint", "pretrained:cuboid", "--policy", f"{name}:act"]
        assert test.main(words) == 2
        assert f"--policy {said}" in error_line(capsys)


def test_a_team_of_no_robots() -> None:
    simulator = SimCfg(name="mujoco", device="cpu", num_threads=1)
    with pytest.raises(ConfigError, match=r"env\.robots: \[\] names no robot; .*allowed: go1, go2"):
        make_env(EnvCfg(num_envs=1, robots=()), simulator, PushCfg(), 1)


def test_an_origin_of_many_brackets_counts_as_damaged(tmp_path) -> None:
    path = tmp_path / provenance.ORIGIN
    for text in (DEEP, '{"starts": ' + DEEP, '{"starts": 3}'):
        path.write_text(text)
        run_id = provenance.write(tmp_path, {"device": "cpu"})
        assert json.loads(path.read_text()) == {"run_id": run_id, "starts": [{"device": "cpu"}]}


def endless(path: Path, kind: str) -> Path:
    """Make ``path`` a file without an end."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**34)  # of zeros, without a byte on the disk
    return path


class Malicious:
    """An object with a side effect at unpickling: it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("how", ["torch's archive", "torch's old format", "a plain pickle"])
@pytest.mark.filterwarnings("error")
def test_a_pickle_that_runs_code_is_refused_in_one_line(how: str, tmp_path) -> None:
    made = tmp_path / "made"
    path = tmp_path / checkpoint.TRAINING_STATE
    content = {"iteration": Malicious(made)}
    if how == "a plain pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        is_zip = how == "torch's archive"
        torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    said = r"damaged \(not only tensors, and no other pickled object is ever loaded\); "
    with pytest.raises(ConfigError, match=f"{said}take another checkpoint"):
        read_tensors(path)
    with pytest.raises(ConfigError, match=f"{said}--resume an earlier checkpoint"):
        checkpoint.read_training_state(tmp_path)
    assert not made.exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "16 GiB"])
def test_files_that_never_end(kind: str, tmp_path, capsys) -> None:
    start = time.process_time()
    said = "larger than 16 MiB" if kind == "16 GiB" else "a pipe, socket or device, not a file"
    endless(tmp_path / MANIFEST, kind)
    assert damage(tmp_path) == f"{MANIFEST}: damaged ({said})"
    assert read_manifest(tmp_path) == {}
    base = endless(tmp_path / "base.yaml", kind)
    (tmp_path / "run.yaml").write_text(f"base: {base}\n")
    with pytest.raises(ConfigError, match=f"base.yaml|/dev/zero.*{said}"):
        load_yaml(tmp_path / "run.yaml")
    assert train.main(["--config", str(base)]) == 2
    assert said in error_line(capsys)
    assert time.process_time() - start < 5.0


def test_a_manifest_names_files_of_its_own_folder(tmp_path) -> None:
    content = {"format_version": 1, "files": {"/proc/kcore": "0"}}
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    assert damage(tmp_path) == f"{MANIFEST}: damaged (it names a file of another folder)"


def test_a_suite_names_no_folder(tmp_path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("logger: {out_dir: /elsewhere}")
    with pytest.raises(ConfigError, match="logger"):
        config.load_suite(str(path))


def test_a_run_file_that_is_a_link_to_itself(tmp_path) -> None:
    path = tmp_path / "run.yaml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match="cannot be read as a YAML file .*symbolic links"):
        load_yaml(path)


def test_names_of_folders_cannot_steer_a_terminal(tmp_path, capsys) -> None:
    run = tmp_path / "\x1b]0;title\x07"
    (run / "checkpoints").mkdir(parents=True)
    run_folder.write_config(run, "runner: {seed: 1}\n")
    assert listing.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b]0;title\\x07" in printed


def test_a_file_of_settings_writes_below_the_present_folder_alone(tmp_path) -> None:
    for name in (str(tmp_path / "elsewhere"), "../elsewhere", "~/elsewhere"):
        cfg, notices = config.resolve({"logger": {"out_dir": name}}, {})
        assert cfg.logger.out_dir is None
        assert notices == [
            f"logger.out_dir={name} left out: a file of settings may write only below the present "
            f"folder; say --out {name}"
        ]
        over = config.flag_values(train.make_parser().parse(["--out", name]))
        assert config.resolve({"logger": {"out_dir": name}}, over)[0].logger.out_dir is not None
    assert config.resolve({"logger": {"out_dir": "results/x"}}, {})[0].logger.out_dir == "results/x"


def test_a_run_keeps_its_id(tmp_path) -> None:
    start = provenance.describe("cpu", {}, {})
    with run_folder.new_run_dir(tmp_path / "run") as run:
        run_id = provenance.write(run, start)
        assert provenance.write(run, provenance.describe("cpu", {}, {})) == run_id
        provenance.check_folder(run, run_id)
    (run / provenance.ORIGIN).write_text(DEEP)
    assert provenance.write(run, start) not in (run_id, None)
