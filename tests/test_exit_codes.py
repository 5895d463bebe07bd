"""Ends after system errors: one line and an exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime

import mujoco
import pytest
from torch import Tensor

from harl_mapush import config, train
from harl_mapush.callbacks.logger import RunLogger
from harl_mapush.interruption import Signalled
from harl_mapush.runner import Runner
from harl_mapush.runs import run_folder
from mqe.config import ConfigError
from mqe.viewer import offscreen
from mqe.world.scene import build_scene
from tests.support.tiny_runs import TINY


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("x.y: no"), 2, "prog: x.y: no\n"),
        (
            PermissionError(13, "Permission denied", "a/b"),
            2,
            "prog: a/b: Permission denied; mend that, or",
        ),
        (OSError(28, "No space left on device"), 2, "prog: No space left on device; mend"),
        (Signalled(signal.SIGINT), 130, "prog: ended by SIGINT\n"),
    ],
)
def test_one_line_and_a_code(error: BaseException, code: int, said: str, capsys) -> None:
    def fail() -> int:
        raise error

    assert config.exit_code(fail, "prog") == code
    line = capsys.readouterr().err
    assert line.startswith(said)
    assert line.count("\n") == 1


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    def fail() -> int:
        raise OSError("not the system's word")

    with pytest.raises(OSError, match="not the system's word"):
        config.exit_code(fail, "prog")


def test_output_that_no_one_reads_ends_quietly(monkeypatch, capsys) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)

        def endless() -> int:
            while True:
                out.write("x" * 10_000)

        assert config.exit_code(endless, "prog") == 128 + signal.SIGPIPE
        out.write("what is left is flushed without an error")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("interval", [1, 10**9])
def test_a_second_ctrl_c_names_what_is_left(
    interval: int, gait, tmp_path, monkeypatch, capsys
) -> None:
    collect = Runner.collect

    def collect_or_stop(runner: Runner) -> dict[str, Tensor]:
        metrics = collect(runner)
        if runner.progress.iteration == 2:
            raise Signalled(signal.SIGINT)
        return metrics

    monkeypatch.setattr(Runner, "collect", collect_or_stop)
    run = tmp_path / "run"
    every = f"runner.checkpoint_interval={interval}"
    argv = [
        *TINY,
        "--set",
        f"task.gait={gait}",
        "--set",
        every,
        "--num_env_steps",
        "4096",
        "--out",
        str(run),
    ]
    assert train.main(argv) == 130
    line = capsys.readouterr().err
    left = f"resume from its last checkpoint with: {train.PROGRAM} --resume {run}"
    assert line.endswith(
        f"{left if interval == 1 else 'it has no checkpoint yet, start it again'}\n"
    )


def _command(gait, out, num_env_steps: int = 128) -> list[str]:
    return [
        *TINY,
        "--set",
        f"task.gait={gait}",
        "--num_env_steps",
        str(num_env_steps),
        "--out",
        str(out),
    ]


def test_what_is_ignored_stays_ignored(gait, tmp_path, monkeypatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        monkeypatch.setattr(RunLogger, "log", lambda *_: signal.raise_signal(signal.SIGHUP))
        assert train.main(_command(gait, tmp_path / "run")) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_the_last_iteration_finishes_the_run(
    gait, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(RunLogger, "log", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert train.main(_command(gait, tmp_path / "run", 1)) == 0
    assert "Done" in capsys.readouterr().out


def test_two_runs_may_begin_within_a_second(gait, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    usual = run_folder.default_run_dir
    second = datetime(2026, 1, 2)
    monkeypatch.setattr(run_folder, "default_run_dir", lambda *about: usual(*about[:-1], second))
    argv = [*TINY, "--set", f"task.gait={gait}", "--num_env_steps", "1"]
    assert (train.main(argv), train.main(argv)) == (0, 0)
    made = sorted(path.parent.name for path in tmp_path.rglob("checkpoints"))
    assert made == ["seed-00001-2026-01-02-00-00-00", "seed-00001-2026-01-02-00-00-00-2"]


def test_what_is_written_in_one_move_leaves_nothing_where_it_fails(tmp_path, monkeypatch) -> None:
    (tmp_path / "config.yaml").mkdir()  # in the way
    with pytest.raises(OSError, match="config.yaml"):
        run_folder.write_config(tmp_path, "a: 1")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_window_system_that_is_not_there_is_named(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise mujoco.FatalError("gladLoadGL error")

    monkeypatch.setattr(offscreen, "choose_backend", lambda: "glfw")
    monkeypatch.setattr(mujoco, "Renderer", fail)
    with pytest.raises(ConfigError, match="cannot render with glfw: gladLoadGL error"):
        offscreen.SceneRenderer(build_scene(1, None), (8, 8))


def test_another_task_brings_its_own_team(walking) -> None:
    cfg, notices = config.resolve(config.load_preset("laptop"), {"task": {"name": "walking"}})
    assert cfg.env.num_agents is None
    assert any(line.startswith("env.num_agents left out") for line in notices)
