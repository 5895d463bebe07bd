"""Files and names that an attacker, an accident or a typo leaves behind: one line that names them,
never a traceback, a hang, or a result of something else.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from harl_mapush import test, train
from harl_mapush.runs import provenance
from mqe.config import ConfigError, load_yaml
from mqe.manifest import MANIFEST, damage, read_manifest
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
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
        provenance.write(tmp_path, {"device": "cpu"})
        assert json.loads(path.read_text()) == {"starts": [{"device": "cpu"}]}


def endless(path: Path, kind: str) -> Path:
    """Make ``path`` a file whose reader never ends."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**34)  # of zeros, without a byte on the disk
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "16 GiB"])
def test_files_that_never_end(kind: str, tmp_path, capsys) -> None:
    start = time.perf_counter()
    said = "larger than 16 MiB" if kind == "16 GiB" else "a pipe, socket or device, not a file"
    endless(tmp_path / MANIFEST, kind)
    assert damage(tmp_path) == f"{MANIFEST}: damaged ({said})"
    assert read_manifest(tmp_path) == {}
    base = endless(tmp_path / "base.yaml", kind)
    (tmp_path / "run.yaml").write_text(f"base: {base}\n")
    with pytest.raises(ConfigError, match=f"base.yaml|/dev/zero.*{said}"):
        load_yaml(tmp_path / "run.yaml")
    assert train.main(["--load_config", str(base)]) == 2
    assert said in error_line(capsys)
    assert time.perf_counter() - start < 5.0
