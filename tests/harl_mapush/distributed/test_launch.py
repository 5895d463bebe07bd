"""Distributed launch: rendezvous, the rank in charge of error reports, and the end after a dead or
hung rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harl_mapush import train
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


def test_a_rank_reports_that_another_is_lost(monkeypatch, capsys) -> None:
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "all_gather_object", fail)
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


def test_a_restart_by_torchrun_is_refused(monkeypatch, capsys) -> None:
    values = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "TORCHELASTIC_RESTART_COUNT": 1}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    assert train.main(["--preset", "smoke"]) == 2
    assert "leave out --max-restarts, and continue a run with --resume" in capsys.readouterr().err


def torchrun(out: Path, gait: Path, *words: str, ranks: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    command += [
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


def start_rank(number: int, variables: dict[str, str], argv: list[str], log: Path) -> int:
    """Train as one rank in a forked process, with all imports done. Return its id."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        with log.open("a") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            os.environ.update(variables | {"RANK": str(number), "LOCAL_RANK": str(number)})
            sys.stdout = stream
            code = train.main(argv)
    finally:
        os._exit(code)


def test_two_ranks_train_from_the_command_line(gait: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    out = tmp_path / "run"
    every = ("--num_env_steps", "64", "--set", "runner.checkpoint_interval=64")
    every += ("--set", "task.decision_period=2", "--set", f"task.gait={gait}")
    argv = [*TINY, *every, "--device", "cpu", "--out", str(out)]
    logs = [tmp_path / "log0", tmp_path / "log1"]
    ranks = [start_rank(k, variables, argv, log) for k, log in enumerate(logs)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    assert codes == [0, 0], logs[0].read_text() + logs[1].read_text()
    assert "Done; the last checkpoint is" in logs[0].read_text()
    assert (out / "checkpoints" / "64" / "manifest.json").is_file()


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
def test_a_mistake_of_all_ranks_is_a_line_of_each(
    gait: Path, tmp_path: Path, words: list[str]
) -> None:
    process = torchrun(tmp_path / "run", gait, *words, ranks=3)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = [line for line in stderr.splitlines() if line.startswith("mapush train")]
    assert 1 <= len(lines) <= 3, stderr


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
