"""harl_mapush.allocator: large blocks that are freed stay with the process, where glibc is there and nobody objects."""

from __future__ import annotations

import ctypes
import resource
from types import SimpleNamespace

import pytest
import torch

from harl_mapush.allocator import keep_freed_memory


@pytest.fixture
def silent(monkeypatch):
    for name in ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"):
        monkeypatch.delenv(name, raising=False)


def page_faults_of(num_bytes: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(num_bytes, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_block_that_was_freed_is_used_again(silent):
    if not keep_freed_memory():
        pytest.skip("no glibc here")
    size, page = 64 * 2**20, resource.getpagesize()
    for _ in range(6):  # the heap grows where blocks do not fit behind one another
        page_faults_of(size)
    assert sum(page_faults_of(size) for _ in range(4)) < size / page / 100


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"])
def test_the_users_allocator_settings_are_kept(silent, monkeypatch, name):
    monkeypatch.setenv(name, "glibc.malloc.arena_max=2")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("the allocator is changed"))
    assert not keep_freed_memory()


def test_another_c_library_is_left_alone(silent, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not keep_freed_memory()


def test_an_older_glibc_takes_a_lower_threshold(silent, monkeypatch):
    calls = []

    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return int(parameter != -3 or value <= 32 * 2**20)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert keep_freed_memory()
    assert calls == [(-3, 2**30), (-3, 2**25), (-1, 2**30), (-2, 2**26)]
