"""Commands on systems without the signals, modules and file calls of Linux, by stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harl_mapush.runs import durable
from mapush.built_in import extensions
from mapush.extensions.sweep import child
from tests.support.paths import ROOT
from tests.support.tiny_runs import TINY

# A process with what Python has on Windows, for our modules and those imported after a few others.
# pathlib asks os.name, which stays.
WINDOWS = """
import os, signal, sys, enum
import mujoco, torch, tensorboard
KEPT = ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")
signal.Signals = enum.IntEnum("Signals", {name: int(signal.Signals[name]) for name in KEPT})
for name in dir(signal):
    if name.startswith("SIG") and name not in (*KEPT, "SIG_DFL", "SIG_IGN"):
        delattr(signal, name)
del signal.pthread_sigmask
sys.modules.update(dict.fromkeys(("fcntl", "resource", "termios", "pwd", "grp")))
for name in ("sched_getaffinity", "memfd_create", "sysconf", "getuid", "geteuid"):
    delattr(os, name)
import json
from mapush.cli import main
for words in json.loads(sys.argv[1]):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 0, words
"""


def run(folder: Path, *commands: list[str]) -> str:
    """Run commands as on Windows, in one process. Return their output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS, json.dumps(commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_team_is_trained_and_measured_without_linux(tmp_path: Path) -> None:
    steps = ["--num_env_steps", "16", "--device", "cpu", "--out", "run"]
    short = ["--num_envs", "2", "--set", "task.episode_length_s=0.2", "--device", "cpu"]
    others = ["play", "list", "export", "doctor"]
    for extension in extensions():
        others += extension.commands
    shown = run(
        tmp_path,
        ["train", *TINY, *steps],
        ["test", "run", *short],
        ["list"],
        *([command, "--help"] for command in others),
    )
    assert "success" in shown
    assert "pretrained:cuboid" in shown
    assert shown.count("usage: mapush") == len(others)


def test_windows_flushes_files_that_it_may_write(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("text")
    real_open = os.open

    def open_as_windows(path: str, flags: int) -> int:
        if Path(path).is_dir() or not flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags)

    monkeypatch.setattr(durable.os, "open", open_as_windows)
    with pytest.raises(PermissionError):
        durable.sync(tmp_path)
    monkeypatch.setattr(durable, "IS_WINDOWS", True)
    durable.sync(tmp_path / "file")
    durable.sync(tmp_path)


def test_windows_saves_a_trial_whose_sweep_is_gone(monkeypatch) -> None:
    def terminate(pid: int, number: int) -> None:
        raise AssertionError("Windows ends the process here, whatever its handlers")

    ends = []
    monkeypatch.setattr(child.os, "kill", terminate)
    monkeypatch.delattr(signal, "SIGKILL")
    monkeypatch.setattr(child.os, "read", lambda file, size: b"")
    monkeypatch.setattr(child.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(child.os, "_exit", ends.append)
    before = signal.signal(signal.SIGTERM, lambda number, frame: ends.append("saved"))
    try:
        child._end_with_parent()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ends == ["saved", 1]
