"""mqe.host_memory: the machine's free memory, within control-group limits, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mqe import control_groups, host_memory
from mqe.config import ConfigError
from mqe.host_memory import check_room, exhaustion_named

MIB = 2**20
MEMINFO = """MemTotal:       24000000 kB
MemFree:         6000000 kB
MemAvailable:   20000000 kB
HugePages_Total:       0
"""
V2 = "0::/jobs/one\n"
V1 = "12:memory:/docker/7\n4:cpu,cpuacct:/docker/7\n0::/docker/7\n"
AVAILABLE = 20_000_000 * 1024
UNLIMITED = 9223372036854771712  # as v1 writes no limit


@pytest.fixture
def on(tmp_path: Path, monkeypatch):
    """Return a function to put this process on a machine, in a group from a file tree."""

    def put(own: str, files: dict[str, str], meminfo: str = MEMINFO) -> int | None:
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "own").write_text(own)
        (tmp_path / "meminfo").write_text(meminfo)
        monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "own")
        monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "groups")
        monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "meminfo")
        return host_memory.host_memory()

    return put


def v2(group: str, limit: object, usage: int, cached: int = 0) -> dict[str, str]:
    """Return a v2 group's files."""
    stat = f"anon {usage - cached}\ninactive_file {cached - cached // 4}\n"
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{usage}\n",
        f"{group}/memory.stat": f"{stat}active_file {cached // 4}\n",
    }


def v1(group: str, limit: int, usage: int, cached: int = 0) -> dict[str, str]:
    """Return a v1 group's files."""
    return {
        f"{group}/memory.limit_in_bytes": f"{limit}\n",
        f"{group}/memory.usage_in_bytes": f"{usage}\n",
        f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}\n",
    }


def test_cached_files_are_available(on) -> None:
    assert on(V2, {}) == AVAILABLE


@pytest.mark.parametrize(
    ("own", "files", "available"),
    [
        (V2, v2("jobs/one", 700 * MIB, 300 * MIB), 400 * MIB),
        (V2, v2("jobs/one", 700 * MIB, 600 * MIB, 400 * MIB), 500 * MIB),
        (V2, v2("jobs/one", 700 * MIB, 800 * MIB), 0),
        (V2, v2("jobs/one", "max", 300 * MIB), AVAILABLE),
        # The group around it has the smaller limit.
        (
            V2,
            v2("jobs/one", 900 * MIB, 100 * MIB) | v2("jobs", 700 * MIB, 500 * MIB),
            200 * MIB,
        ),
        # A container sees its group as the root.
        (V2, v2(".", 700 * MIB, 300 * MIB), 400 * MIB),
        (V1, v1("memory/docker/7", 700 * MIB, 600 * MIB, 200 * MIB), 300 * MIB),
        (V1, v1("memory", 700 * MIB, 300 * MIB), 400 * MIB),
        (V1, v1("memory/docker/7", UNLIMITED, 300 * MIB), AVAILABLE),
        (V2, v2("jobs/one", -1, 300 * MIB), AVAILABLE),
        ("nonsense\n", {}, AVAILABLE),
    ],
)
def test_a_limit_of_a_control_group_counts(on, own, files, available) -> None:
    assert on(own, files) == available


def test_a_system_without_these_files_still_answers(on) -> None:
    available = on(V2, {}, meminfo="nothing\n")
    assert available is not None
    assert available > 0


CPU = torch.device("cpu")


def test_what_does_not_fit_names_a_number_that_would(monkeypatch) -> None:
    monkeypatch.setattr(host_memory, "host_memory", lambda: 2**30)
    check_room(2.0**30, CPU, "env.num_envs", 1000)  # it would raise
    with pytest.raises(ConfigError, match="lower env.num_envs to "):
        check_room(2.0**30 + 1, CPU, "env.num_envs", 1000)
    with pytest.raises(ConfigError) as raised:  # 0.9 / 10 of 8,000 are 720, with two digits 512
        check_room(10.0 * 2**30, CPU, "env.num_envs", 8000)
    assert str(raised.value) == (
        "env.num_envs=8000 takes 10.0 GiB, but cpu has 1.0 GiB free for it; "
        "lower env.num_envs to 512"
    )
    check_room(10.0 * 2**30 * 512 / 8000, CPU, "env.num_envs", 512)
    with pytest.raises(ConfigError, match="free for it; end other programs that use it$"):
        check_room(2.0**32, CPU, "env.num_envs", 1)
    monkeypatch.setattr(host_memory, "host_memory", lambda: None)
    check_room(2.0**40, CPU, "env.num_envs", 1000)  # nobody knows


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("Failed to allocate 8 bytes on device 'cuda:0'"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_exhausted_memory_names_half_of_the_worlds(error: Exception) -> None:
    with (
        pytest.raises(ConfigError, match=r"memory is exhausted .*; lower env.num_envs to 2048$"),
        exhaustion_named(4096),
    ):
        raise error
    with pytest.raises(RuntimeError, match="^a fault$"), exhaustion_named(4096):
        raise RuntimeError("a fault")


def test_one_world_cannot_be_halved() -> None:
    match = r"memory is exhausted .*; end other programs that use it$"
    with pytest.raises(ConfigError, match=match), exhaustion_named(1):
        raise MemoryError
