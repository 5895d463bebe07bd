"""Early ends: signals at any moment, the clock, and unwritable folders."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush import config, interruption, parts, train
from harl_mapush.callbacks.curves import Curves
from harl_mapush.callbacks.ending import EndOnRequest, RunEnded
from harl_mapush.callbacks.logger import RunLogger
from harl_mapush.distributed.ranks import ALONE
from harl_mapush.durations import parse_duration
from harl_mapush.interruption import ENDING_SIGNALS, Interruption, WallTime
from harl_mapush.progress import IterationReport, Progress
from harl_mapush.runs import checkpoint
from mqe.config import ConfigError
from tests.support.tiny_runs import TINY

ITERATION = 32  # env steps


@pytest.fixture
def command(gait, tmp_path) -> list[str]:
    every = ("--set", f"runner.checkpoint_interval={ITERATION}", "--set", "task.decision_period=2")
    return [*TINY, *every, "--set", f"task.gait={gait}", "--out", str(tmp_path / "run")]


def points(folder: Path) -> list[tuple[int, float]]:
    return [
        (event.step, event.value) for event in EventAccumulator(str(folder)).Reload().Scalars("x")
    ]


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


# Signals


def test_the_same_signal_again_ends_at_once_if_it_is_sent_by_hand() -> None:
    for number, is_by_hand in (
        (signal.SIGTERM, True),
        (signal.SIGUSR1, False),
        (signal.SIGXCPU, False),
    ):
        noted = Interruption()
        with interruption.as_exceptions(), noted.recorded():
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGUSR2)  # another one is no second
            assert noted.signal == number
            if is_by_hand:
                with pytest.raises(interruption.Signalled):
                    signal.raise_signal(number)
            else:
                signal.raise_signal(number)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_while_worlds_are_built_is_one_line(
    number: int, command, monkeypatch, tmp_path, capsys
) -> None:
    monkeypatch.setattr(parts, "make_env", lambda *_: signal.raise_signal(number))
    assert train.main(command) == 128 + number
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "program", ["mapush", pytest.param("harl_mapush.train", marks=pytest.mark.slow)]
)
def test_a_signal_while_python_imports_is_one_line(program: str) -> None:
    words = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        program,
        *(["train"] if program == "mapush" else []),
    ]
    with subprocess.Popen(
        [*words, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "| " in line and line.split("| ")[-1].strip() == "numpy":  # in the midst of it
                process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if not line.startswith("import time:")]
        assert process.wait(30) == 128 + signal.SIGTERM
    assert len(rest) == 1
    assert rest[0].endswith("ended by SIGTERM before it began\n")


# The clock


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3h50m", 13_800), ("90m", 5_400), ("1d12h", 129_600), ("30s", 30), ("1d2h3m4s", 93_784)],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "3", "3:50", "0s", "h", "-3h", "3h 50m", "50m3h", "3.5h", "9999999999h"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="max_wall_time.*is no duration; write it as 3h50m"):
        config.resolve({}, {"runner": {"max_wall_time": text}})


class SlowTrainer:
    """Progress over 1,000 iterations, 100 env steps each, on the test's own clock."""

    def __init__(self, monkeypatch) -> None:
        self.progress = Progress(100, 100, 1_000, checkpoint_interval=100_000)
        self.now_s = 1_000.0
        self.num_saved = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def save_last(self, env_steps: int) -> None:
        self.num_saved += 1

    def run(self, limit: str, *, compile_s=0.0, evaluation_s=0.0, save_s=0.0, interval=None):
        """Return a run's duration in seconds, with 2 s iterations. The first iteration compiles."""
        start = self.now_s
        wall_time = WallTime(limit, start)
        ending = EndOnRequest(self, wall_time, self, ALONE)
        self.now_s += 30.0  # the worlds are built
        with pytest.raises(RunEnded):
            self._iterate(ending, compile_s, evaluation_s, save_s, interval)
        return self.now_s - start

    def _iterate(self, ending, compile_s, evaluation_s, save_s, interval) -> None:
        while not self.progress.is_done:
            training_s = 2.0 if self.progress.iteration else 2.0 + compile_s
            self.progress.iteration += 1
            self.now_s += training_s
            if interval is not None and self.progress.env_steps % interval == 0:
                self.now_s += evaluation_s
            done = self.progress.iteration
            ending.on_iteration(
                IterationReport(done, 1_000, 100 * done, 100_000, training_s - 0.5, 0.5, metrics={})
            )
            if save_s and done % 20 == 0:
                self.now_s += save_s
                ending.on_checkpoint(100 * done)


def test_the_time_limit_does_not_count_on_compiling_again(monkeypatch) -> None:
    # 1.5 * (2 s of training + 5 s for an unknown checkpoint) must be left: 499.5 s are the last.
    assert SlowTrainer(monkeypatch).run("510s", compile_s=65.0) == 30.0 + 65.0 + 2.0 * 203


def test_the_time_limit_leaves_time_for_a_checkpoint(monkeypatch) -> None:
    # 1.5 * (2 + 10) s must be left: after iteration 217 of 2 s, with ten checkpoints of 10 s.
    trainer = SlowTrainer(monkeypatch)
    ended_s = trainer.run("510s", save_s=10.0)
    assert ended_s == 30.0 + 2.0 * trainer.progress.iteration + 10.0 * 9
    assert 490.0 < ended_s <= 510.0 - 10.0
    assert trainer.num_saved == 1


def test_the_time_limit_leaves_time_for_another_evaluation(monkeypatch) -> None:
    # After iteration 39, at 148 s, 1.5 * (2 + 40 + 5) s must be left.
    trainer = SlowTrainer(monkeypatch)
    trainer.run("218s", evaluation_s=40.0, interval=2_000)
    assert trainer.progress.iteration == 39


def test_without_a_limit_time_is_never_up() -> None:
    assert not WallTime(None, start=0.0).is_up()


def test_time_that_is_up_saves_and_ends(command, tmp_path, capsys) -> None:
    assert train.main([*command, "--max_wall_time", "1s", "--num_env_steps", "1_000_000"]) == 3
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("Time is up (max_wall_time 1s); the last state is saved in ")
    assert line.endswith(f"Resume with: mapush train --resume {tmp_path / 'run'}")
    done = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    again = ["--resume", str(tmp_path / "run"), "--num_env_steps", str(done + ITERATION)]
    assert train.main([*again, "--max_wall_time", "1h"]) == 0


# Places that cannot be written


def test_curves_that_cannot_be_written_are_kept_until_they_can(tmp_path) -> None:
    said: list[str] = []
    curves = Curves(tmp_path, said.append)
    curves.add({"x": 1.0}, 1)
    curves.flush()
    (file,) = tmp_path.iterdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, before[1]))
    try:
        for step in (2, 3):
            curves.add({"x": float(step)}, step)
            curves.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(said) == 1
    assert "cannot be written (File too large); training continues" in said[0]
    assert points(tmp_path) == [(1, 1.0)]  # no half of a point is left
    curves.add({"x": 4.0}, 4)
    curves.flush()
    assert points(tmp_path) == [(step, float(step)) for step in (1, 2, 3, 4)]


def test_curves_that_cannot_be_written_stay_within_bounds(tmp_path, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("harl_mapush.callbacks.curves._MOST_WAITING", 100)
    curves = Curves(tmp_path / "none" / "logs", said.append)  # the run folder is not there
    for step in range(1000):
        curves.add({"x": 1.0}, step)
    curves.flush()
    assert len(curves._waiting) == 100
    assert list(tmp_path.iterdir()) == []  # and does not come back as a ghost
    assert len(said) == 1


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_curves_that_go_away_do_not_end_the_run(how: str, command, tmp_path, monkeypatch) -> None:
    log = RunLogger.log
    run = tmp_path / "run"

    def log_and_break(self, report, statistics) -> None:
        log(self, report, statistics)
        self.flush()
        if report.iteration == 1:
            (curves,) = run.glob("events.*")
            if how == "moved":
                curves.rename(tmp_path / curves.name)
            else:
                curves.unlink()

    monkeypatch.setattr(RunLogger, "log", log_and_break)
    assert train.main([*command, "--num_env_steps", "96"]) == 0
    assert (run / "checkpoints" / "96").is_dir()
    scalars = EventAccumulator(str(run)).Reload().Scalars("critic/value_loss")
    assert [event.step for event in scalars] == [64, 96]


def test_a_checkpoint_that_fails_is_tried_again_at_the_next_interval(
    command, tmp_path, monkeypatch, capsys
) -> None:
    save = checkpoint.save
    monkeypatch.setattr(
        checkpoint, "save", lambda *a, **k: full() if a[1] in (64, 96) else save(*a, **k)
    )
    assert train.main([*command, "--num_env_steps", "128"]) == 0
    said = capsys.readouterr().out
    assert (
        "Note: checkpoint 64 cannot be written (No space left on device); training continues"
        in said
    )
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "128",
        "32",
    ]


def test_a_run_that_cannot_save_any_more_says_so_and_stops(
    command, tmp_path, monkeypatch, capsys
) -> None:
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *a, **k: full() if a[1] > 32 else save(*a, **k))
    assert train.main([*command, "--num_env_steps", "10_000"]) == 4
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert (
        "checkpoint 128 cannot be written (No space left on device), nor could the 2 before it"
        in captured.err
    )
    assert (
        f"resume from its last checkpoint with: {train.PROGRAM} --resume {tmp_path / 'run'}\n"
        in captured.err
    )


def test_a_run_folder_that_is_moved_does_not_come_back_as_a_ghost(
    command, tmp_path, monkeypatch
) -> None:
    log = RunLogger.log
    run = tmp_path / "run"

    def log_and_move(self, report, statistics) -> None:
        log(self, report, statistics)
        if report.iteration == 2:
            run.rename(tmp_path / "moved")

    monkeypatch.setattr(RunLogger, "log", log_and_move)
    assert train.main([*command, "--num_env_steps", "10_000"]) == 4
    assert not run.exists()
    monkeypatch.undo()
    assert train.main(["--resume", str(tmp_path / "moved"), "--num_env_steps", "64"]) == 0
