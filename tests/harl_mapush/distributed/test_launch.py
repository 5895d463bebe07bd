"""Distributed launch: rendezvous, the rank in charge of error reports, and the end after a dead or
hung rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harl_mapush import machine, train
from harl_mapush.callbacks.logger import RunLogger
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from mqe.config import ConfigError
from tests.support.paths import ROOT
from tests.support.tiny_runs import TINY

CPU = torch.device("cpu")


def test_torchrun_is_recognised_by_its_variables(monkeypatch) -> None:
    assert Launch.of_environment() == Launch()
    for name, value in (
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
    ):
        monkeypatch.setenv(name, value)
    assert Launch.of_environment() == Launch(3, 4, 1, 2, 0)
    for name, nonsense in (
        ("LOCAL_WORLD_SIZE", "abc"),
        ("LOCAL_WORLD_SIZE", "0"),
        ("RANK", "\u00b2"),
        ("TORCHELASTIC_RESTART_COUNT", "-1"),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, nonsense)
            assert Launch.of_environment() == Launch()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Launch.of_environment().device(torch.device("cuda", 0)) == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="2 ranks on this machine, but 1 GPU.*--nproc_per_node 1"):
        Launch.of_environment().device(torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("rank", "others", "is_said"),
    [
        (0, {1: "gamma: bad"}, True),
        (1, {0: "gamma: bad"}, False),
        (1, {0: "ready"}, True),
        (1, {0: "lam: bad"}, True),
        (1, {}, True),  # rank 0 says nothing in time
        (1, None, True),  # torchrun is gone
        (2, {0: "ready", 1: "gamma: bad"}, False),
    ],
)
def test_a_mistake_is_said_by_the_first_rank_that_makes_it(
    rank: int, others: dict[int, str] | None, is_said: bool, monkeypatch, capsys
) -> None:
    meet(monkeypatch, Launch(rank, max(2, rank + 1)), others)
    launch.write_error("prog (rank)", "gamma: bad")
    assert capsys.readouterr().err == ("prog (rank): gamma: bad\n" if is_said else "")


def test_a_rank_without_a_mistake_ends_where_another_one_made_one(monkeypatch, capsys) -> None:
    monkeypatch.setattr(dist, "init_process_group", None)
    meet(monkeypatch, Launch(0, 2), {1: "gamma: bad"})
    with pytest.raises(SystemExit) as ending, launch.joined(Launch(0, 2), CPU, str):
        pass
    assert (ending.value.code, capsys.readouterr().err) == (2, "")


def test_one_rank_reports_that_another_is_lost(monkeypatch, capsys) -> None:
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "all_gather_object", fail)
    meet(monkeypatch, Launch(0, 2), {1: "ready"})
    for _ in range(2):  # two ranks of one launch
        joined = launch.joined(Launch(0, 2), CPU, lambda: "resume with: --resume RUN")
        with pytest.raises(SystemExit) as ending, joined as ranks:
            ranks.gather(None)
        assert ending.value.code == launch.RANK_LOST
    assert capsys.readouterr().err == (
        "rank 0 lost another rank (Connection closed by peer); all ranks end; "
        "resume with: --resume RUN\n"
    )


def ends(code: int) -> int:
    raise SystemExit(code)


@pytest.mark.parametrize(
    ("main", "code"), [(lambda: 3, 3), (lambda: ends(2), 2), (lambda: 1 // 0, 1)]
)
def test_ranks_that_have_met_end_at_once(main: Any, code: int, monkeypatch, capsys) -> None:
    """NCCL would wait for graphs when Python tidies up."""
    left: list[int] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", left.append)
    launch.run_to_exit(main)
    assert left == [code]
    assert ("ZeroDivisionError" in capsys.readouterr().err) == (code == 1)


@pytest.fixture
def start(tmp_path: Path, monkeypatch) -> Callable[[int], Launch]:
    """Return a function to make this process the first start (0), or a later one, in one torchrun
    launch.
    """

    def start(restarts: int) -> Launch:
        values = {
            "RANK": 0,
            "WORLD_SIZE": 1,
            "LOCAL_RANK": 0,
            "TORCHELASTIC_RESTART_COUNT": restarts,
        }
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        folder = tmp_path / "none_abc" / f"attempt_{restarts}" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
        return Launch.of_environment()

    return start


def test_later_starts_know_the_run_and_when_the_first_was(
    start, tmp_path: Path, monkeypatch
) -> None:
    now = [100.25]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert (start(0).first_start(), start(0).remembered()) == (100.25, None)
    start(0).remember(tmp_path)
    now[0] = 900.0
    assert (start(1).first_start(), start(2).first_start()) == (100.25, 100.25)
    assert start(1).remembered() == tmp_path
    (tmp_path / "none_abc" / "mapush-start").write_text("")  # on a full disk
    assert start(1).first_start() == 900.0


@pytest.mark.parametrize(
    ("begun", "is_noted"), [(Launch(2, 4, 0, 2), True), (Launch(3, 4, 1, 2), False)]
)
def test_each_machine_notes_its_start_and_the_run(
    begun: Launch, is_noted: bool, start, tmp_path: Path
) -> None:
    start(0)
    begun.remember(tmp_path)
    moment = begun.first_start()
    assert (start(1).remembered() == tmp_path) == is_noted
    assert (start(1).first_start() == moment) == is_noted


def test_without_torchruns_folder_a_later_start_is_like_the_first(
    start, tmp_path: Path, monkeypatch
) -> None:
    for restarts in (0, 1):
        begun = start(restarts)
        monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
        now = time.monotonic()
        assert begun.first_start() >= now
        assert (begun.remembered(), begun.ended_for_good()) == (None, None)
        assert launch.run_to_exit(lambda: 2) == 2
        begun.remember(tmp_path)


def test_a_mistake_is_said_by_the_first_start_alone(start, capsys) -> None:
    start(0)
    assert train.main(["--set", "algorithm.gamma=2"]) == 2
    assert "algorithm.gamma" in capsys.readouterr().err
    for restarts in (1, 2):
        start(restarts)
        assert train.main(["--set", "algorithm.gamma=2"]) == 2
        line = f"Restart {restarts} ends at once: the run ended with exit code 2 (see above).\n"
        assert capsys.readouterr() == ("", line)


def test_a_rank_that_ends_with_anothers_mistake_ends_for_good(start) -> None:
    start(0)
    with pytest.raises(SystemExit):
        launch.run_to_exit(lambda: ends(2))
    start(1)
    assert launch.run_to_exit(lambda: 0) == 2


@pytest.mark.parametrize(
    "code", [1, 2, 4, 5, 143]
)  # 143: torchrun ends ranks that are left with SIGTERM
def test_a_run_that_has_begun_is_started_again(code: int, start, tmp_path: Path) -> None:
    start(0).remember(tmp_path)
    assert launch.run_to_exit(lambda: code) == code
    start(1)
    assert launch.run_to_exit(lambda: 0) == 0


def test_a_restart_after_the_time_limit_builds_nothing(
    start, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(machine, "resolve_sim", None)
    start(0).first_start()
    (tmp_path / "none_abc" / "mapush-start").write_text(repr(time.monotonic() - 3600))
    argv = ["--preset", "laptop", *TINY, "--max_wall_time", "1h", "--out", str(tmp_path / "run")]
    said = []
    for restarts in (1, 2):
        start(restarts)
        assert train.main(argv) == 3
        said += capsys.readouterr()
    assert said[:2] == ["Time is up (max_wall_time 1h, from torchrun's first start).\n", ""]
    assert said[2:] == ["", "Restart 2 ends at once: the run ended with exit code 3 (see above).\n"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("words", "code"), [(["--max_wall_time", "1s"], 3), ([], 143)])
def test_a_run_that_time_or_a_signal_ended_is_not_started_again(
    words: list[str], code: int, start, gait: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    argv = [
        *TINY,
        *words,
        "--num_env_steps",
        "1_000_000",
        "--set",
        f"task.gait={gait}",
        "--out",
        str(tmp_path / "run"),
    ]
    log = RunLogger.log
    if code == 143:
        monkeypatch.setattr(
            RunLogger, "log", lambda *about: (log(*about), signal.raise_signal(signal.SIGTERM))
        )
    start(0)
    assert train.main(argv) == code
    start(1)
    assert train.main(argv) == code
    out, err = capsys.readouterr()
    assert out.count("Run folder") == 1
    assert err == f"Restart 1 ends at once: the run ended with exit code {code} (see above).\n"


def meet(monkeypatch, this_launch: Launch, others: dict[int, str] | None) -> None:
    """Make this process the rank of launch ``own``, after the other ranks' reports ``others``.
    None: the other ranks are unreachable.
    """
    store = Shared()
    for rank, line in (others or {}).items():
        dist.PrefixStore("before/0", store).set(str(rank), line)

    def rendezvous(url: str, **how: Any) -> Any:
        if others is None:
            raise RuntimeError("no store")
        yield store, this_launch.rank, this_launch.size

    monkeypatch.setattr(launch, "rendezvous", rendezvous)
    monkeypatch.setattr(launch, "_PATIENCE_AT_AN_END", timedelta(seconds=0.1))
    monkeypatch.setattr(Launch, "of_environment", lambda: this_launch)


class Shared(dist.HashStore):
    """A store of this process, for as many users as there are."""

    def clone(self) -> Shared:
        return self


def torchrun(
    out: Path, gait: Path, *words: str, ranks: int = 2, restarts: int = 0
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    command += [
        "--max-restarts",
        str(restarts),
        "-m",
        "harl_mapush.train",
        "--device",
        "cpu",
        *words,
    ]
    command += [
        "--num_envs",
        "4",
        "--out",
        str(out),
        "--set",
        f"task.gait={gait}",
        "--set",
        "network.hidden_sizes=[8]",
        "--set",
        "algorithm.num_epochs=2",
    ]
    command += [
        "--set",
        "sim.num_threads=1",
        "--set",
        "runner.num_steps=8",
        "--set",
        "runner.checkpoint_interval=320",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_two_ranks_train_from_the_command_line(gait: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = torchrun(out, gait, "--num_env_steps", "320")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "Done; the last checkpoint is" in stdout
    assert (out / "checkpoints" / "320" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "rank 0 lost another rank"), (signal.SIGTERM, "Interrupted (SIGTERM)")],
)
def test_a_rank_that_is_killed_or_asked_to_end_ends_the_others(
    gait: Path, tmp_path: Path, number: int, said: str
) -> None:
    out = tmp_path / "run"
    process = torchrun(out, gait, "--num_env_steps", "1000000")
    while not list(out.glob("checkpoints/[0-9]*/manifest.json")):
        assert process.poll() is None
        time.sleep(0.2)
    os.kill(_pid_of_rank(1, out), number)
    start = time.monotonic()
    stdout, stderr = process.communicate(timeout=60)
    assert time.monotonic() - start < 35
    assert (
        sum(said in line for line in (stdout + stderr).splitlines() if "rank      :" not in line)
        == 1
    )
    resumed = torchrun(out, gait, ranks=1)  # the same words, so it is refused: the run is whole
    assert "already holds a run" in resumed.communicate(timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--preset", "lapdog"], ["--set", "algorithm.gamma=2"], ["--config", "/dev/null/x"]]
)
def test_a_mistake_of_all_ranks_is_one_line(gait: Path, tmp_path: Path, words: list[str]) -> None:
    process = torchrun(tmp_path / "run", gait, *words, ranks=3)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        sum(line.startswith("python -m harl_mapush.train") for line in stderr.splitlines()) == 1
    ), stderr


@pytest.mark.slow
def test_torchrun_restarts_a_run_that_resumes_by_itself(gait: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = torchrun(out, gait, "--num_env_steps", "3200", restarts=1)
    while not list(out.glob("checkpoints/[0-9]*/manifest.json")):
        assert process.poll() is None
        time.sleep(0.2)
    os.kill(_pid_of_rank(0, out), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert "resumes at" in stdout
    assert (out / "checkpoints" / "3200").is_dir()


def _pid_of_rank(rank: int, out: Path) -> int:
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_text()
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if str(out) in words and f"RANK={rank}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"there is no rank {rank}")
