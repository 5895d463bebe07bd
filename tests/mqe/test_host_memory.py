"""mqe.host_memory: the machine's free memory, within control-group limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqe import control_groups, host_memory

MIB = 2**20
MEMINFO = """MemTotal:       24000000 kB
MemFree:         6000000 kB
MemAvailable:   20000000 kB
HugePages_Total:       0
"""
V2 = "0::/jobs/one\n"
V1 = "12:memory:/docker/7\n4:cpu,cpuacct:/docker/7\n0::/docker/7\n"
AVAILABLE = 20_000_000 * 1024
TOTAL = 24_000_000 * 1024
UNLIMITED = 9223372036854771712  # as v1 writes no limit


@pytest.fixture
def on(tmp_path: Path, monkeypatch):
    """Return a function to put this process on a machine, in a group from a file tree."""

    def put(own: str, files: dict[str, str], meminfo: str = MEMINFO) -> tuple[int | None, ...]:
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
    assert on(V2, {}) == (AVAILABLE, TOTAL)


@pytest.mark.parametrize(
    ("own", "files", "available", "total"),
    [
        (V2, v2("jobs/one", 700 * MIB, 300 * MIB), 400 * MIB, 700 * MIB),
        (V2, v2("jobs/one", 700 * MIB, 600 * MIB, 400 * MIB), 500 * MIB, 700 * MIB),
        (V2, v2("jobs/one", 700 * MIB, 800 * MIB), 0, 700 * MIB),
        (V2, v2("jobs/one", "max", 300 * MIB), AVAILABLE, TOTAL),
        # The group around it has the smaller limit.
        (
            V2,
            v2("jobs/one", 900 * MIB, 100 * MIB) | v2("jobs", 700 * MIB, 500 * MIB),
            200 * MIB,
            700 * MIB,
        ),
        # A container sees its group as the root.
        (V2, v2(".", 700 * MIB, 300 * MIB), 400 * MIB, 700 * MIB),
        (V1, v1("memory/docker/7", 700 * MIB, 600 * MIB, 200 * MIB), 300 * MIB, 700 * MIB),
        (V1, v1("memory", 700 * MIB, 300 * MIB), 400 * MIB, 700 * MIB),
        (V1, v1("memory/docker/7", UNLIMITED, 300 * MIB), AVAILABLE, TOTAL),
        (V2, v2("jobs/one", -1, 300 * MIB), AVAILABLE, TOTAL),
        ("nonsense\n", {}, AVAILABLE, TOTAL),
    ],
)
def test_a_limit_of_a_control_group_counts(on, own, files, available, total) -> None:
    assert on(own, files) == (available, total)


def test_a_system_without_these_files_still_answers(on) -> None:
    available, total = on(V2, {}, meminfo="nothing\n")
    assert available is not None
    assert total is not None
    assert 0 < available <= total
