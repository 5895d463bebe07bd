"""mqe.cores: usable cores by affinity and by control-group limits."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from harl_mapush import process, test, train
from mqe import control_groups, cores
from tests.support.tiny_runs import TINY

V2 = "0::/pods/one\n"
V1 = "12:memory:/docker/7\n4:cpu,cpuacct:/docker/7\n1:name=systemd:/docker/7\n0::/docker/7\n"


def old(group: str, quota: int) -> dict[str, str]:
    """Return a v1 limit's files."""
    return {f"{group}/cpu.cfs_quota_us": f"{quota}\n", f"{group}/cpu.cfs_period_us": "100000\n"}


@pytest.fixture
def on(tmp_path: Path, monkeypatch):
    """Return a function to put this process on 64 cores, in groups ``own`` from a tree with
    ``files``.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)

    def put(own: str | bytes, files: dict[str, str]) -> int:
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "own").write_bytes(own if isinstance(own, bytes) else own.encode())
        monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "own")
        monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "groups")
        return cores.num_cores()

    return put


@pytest.mark.parametrize(
    "own, files, number",
    [
        (V2, {"pods/one/cpu.max": "200000 100000\n"}, 2),
        (V2, {"pods/one/cpu.max": "150000 100000\n"}, 2),  # a part of a core is a core
        (V2, {"pods/one/cpu.max": "10000 100000\n"}, 1),
        (V2, {"pods/one/cpu.max": "max 100000\n"}, 64),
        (V2, {"pods/one/cpu.max": "9900000 100000\n"}, 64),  # more than there are
        (
            V2,
            {"pods/one/cpu.max": "max 100000\n", "pods/cpu.max": "300000 50000\n"},
            6,
        ),  # a limit of the group around it
        (V2, {"pods/one/cpu.max": "400000 100000\n", "pods/cpu.max": "800000 100000\n"}, 4),
        (
            V2,
            {"cpu.max": "300000 100000\n"},
            3,
        ),  # a container sees its own group as the root, and the host's path
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        (V2, {"other/cpu.max": "100000 100000\n"}, 64),
        (V2, {"../cpu.max": "100000 100000\n"}, 64),  # above the tree
        (V2, {}, 64),
        (V1, old("cpu,cpuacct/docker/7", 250_000), 3),
        (V1, old("cpu,cpuacct/docker/7", -1), 64),
        (V1, old("cpu,cpuacct", 200_000), 2),
        (V1, old("cpu,cpuacct/docker", 800_000) | old("cpu,cpuacct/docker/7", -1), 8),
        (V1, old("memory/docker/7", 100_000), 64),
        ("4:cpu:/docker/7\n", old("cpu/docker/7", 200_000), 2),
    ],
)
def test_a_limit_of_processor_time_is_a_number_of_cores(
    on, own: str, files: dict[str, str], number: int
) -> None:
    assert on(own, files) == number


@pytest.mark.parametrize(
    "text", ["", "max", "a b", "100000 0", "-5 100000", "0 100000", "1 2 3", "200000"]
)
def test_a_limit_that_cannot_be_read_is_none(on, text: str) -> None:
    assert on(V2, {"pods/one/cpu.max": text}) == 64


@pytest.mark.parametrize("own", ["", "nonsense\n", "0::\n", b"0::/\xff\n"])
def test_groups_that_cannot_be_read_limit_nothing(on, own: str | bytes) -> None:
    assert on(own, {"pods/one/cpu.max": "100000 100000"}) == 64


def test_where_there_are_no_groups_only_affinity_counts(on, tmp_path: Path, monkeypatch) -> None:
    on(V2, {})
    monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "missing")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 9}, raising=False)
    assert cores.cpu_quota() == math.inf
    assert cores.num_cores() == 3


def test_affinity_and_limit_count_both_whichever_is_smaller(on, monkeypatch) -> None:
    on(V2, {"pods/one/cpu.max": "400000 100000\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert cores.num_cores() == 2


@pytest.mark.parametrize(
    "before, flags, set_to",
    [
        (64, (), [2]),
        (1, (), []),
        (64, ("--set", "runner.torch_threads=3"), [3]),
        (1, ("--set", "runner.torch_threads=3"), [3]),
    ],
)
def test_a_run_takes_no_more_torch_threads_than_cores_unless_it_is_asked_to(
    before: int, flags: tuple[str, ...], set_to: list[int], gait, tmp_path: Path, monkeypatch
) -> None:
    thread_counts: list[int] = []
    monkeypatch.setattr(process, "num_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: before)
    monkeypatch.setattr(torch, "set_num_threads", thread_counts.append)
    argv = [*TINY, *flags, "--num_env_steps", "1", "--set", f"task.gait={gait}"]
    assert train.main([*argv, "--out", str(tmp_path / "run")]) == 0
    assert thread_counts == set_to


@pytest.mark.parametrize("threads_before, set_to", [(64, [2]), (2, []), (1, [])])
def test_a_test_takes_no_more_torch_threads_than_cores(
    threads_before: int, set_to: list[int], monkeypatch
) -> None:
    thread_counts: list[int] = []
    monkeypatch.setattr(process, "num_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads_before)
    monkeypatch.setattr(torch, "set_num_threads", thread_counts.append)
    assert test.main([]) == 2  # CHECKPOINT is missing
    assert thread_counts == set_to
