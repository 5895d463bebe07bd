"""harl_mapush.process: glibc keeps freed blocks, unless the environment sets its allocator."""

from __future__ import annotations

import ctypes
import json
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from harl_mapush.process import keep_freed_memory, say
from tests.support.paths import ROOT

# In a process of its own, where nothing else has shaped the heap, nor torch, which is not needed:
# the page faults of blocks, one after another.
PAGE_FAULTS = """
import ctypes, json, resource, sys, types
sys.modules["torch"] = types.ModuleType("torch")
from harl_mapush.process import keep_freed_memory

def page_faults_of(num_bytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(num_bytes)
    libc.memset(block, 1, num_bytes)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
libc.free.argtypes = (ctypes.c_void_p,)
print(json.dumps([page_faults_of(SIZE) for _ in range(10)] if keep_freed_memory() else None))
"""


@pytest.fixture
def silent(monkeypatch):
    for name in (
        "GLIBC_TUNABLES",
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TOP_PAD_",
    ):
        monkeypatch.delenv(name, raising=False)


def test_a_block_that_was_freed_is_used_again(silent):
    size = 64 * 2**20
    page = resource.getpagesize()
    code = PAGE_FAULTS.replace("SIZE", str(size))
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    faults = json.loads(said)
    if faults is None:
        pytest.skip("no glibc here")
    assert sum(faults[1:]) < size / page / 100


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


def test_lines_for_a_terminal_hold_no_escape_sequences(capsys) -> None:
    say("\x1b[31mrun\x07: 1.0\nsecond line – 95 %")
    assert capsys.readouterr().out == "\\x1b[31mrun\\x07: 1.0\nsecond line – 95 %\n"
