"""harl_mapush.collectors.fleet: starts, limits, deaths and the end of collectors."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harl_mapush.collectors.collector import (
    BUILDING,
    READY,
    Block,
    BlockReport,
    Identity,
    Weights,
)
from harl_mapush.collectors.fleet import Fleet
from harl_mapush.collectors.launchers import CollectionError, WorkerGoneError
from mqe.config import ConfigError

BLOCK = Block((torch.zeros(1).numpy(),), BlockReport({}, 1.0, 0.0, {}, None))


class ScriptedWorker:
    """Answers as its script says: messages, None for silence, or an exception.

    After the script, it answers every request with a block.
    """

    def __init__(self, script: list[Any]) -> None:
        self.script = list(script)
        self.versions: list[int] = []
        self.num_requests = 0
        self.is_ended = False

    def send(self, weights: Weights) -> None:
        self.num_requests += 1
        self.versions.append(weights.num_updates)

    def receive(self) -> Block | str | None:
        if self.script:
            step = self.script.pop(0)
            if isinstance(step, Exception):
                raise step
            return step
        if self.num_requests == 0:
            return None
        self.num_requests -= 1
        return BLOCK

    def describe(self) -> str:
        return "process 1"

    def end(self, timeout_s: float) -> None:
        self.is_ended = True


def make(
    tmp_path: Path, *scripts: list[Any], stall_s: float = 30.0
) -> tuple[Fleet, list[ScriptedWorker]]:
    """Start a collector for each script."""
    workers: list[ScriptedWorker] = []

    def start(settings: Any, identity: Identity, log: Path) -> ScriptedWorker:
        workers.append(ScriptedWorker(scripts[identity.number]))
        return workers[-1]

    launcher: Any = SimpleNamespace(start=start, wait=lambda workers, timeout_s: None)
    return Fleet({}, len(scripts), launcher, tmp_path / "logs", 1, stall_s), workers


def look(fleet: Fleet, times: int, version: int = 0, num_left: int = 100) -> int:
    return sum(fleet.look(lambda: Weights(version, []), num_left) for _ in range(times))


def test_a_collector_fills_the_queue_and_goes_on_when_a_block_is_stored(tmp_path) -> None:
    fleet, (worker,) = make(tmp_path, [BUILDING, READY])
    assert look(fleet, 5, version=3) == 2  # queue_blocks, and the one that was in work
    assert fleet.num_queued == fleet.capacity == 2
    time.sleep(0.02)
    assert look(fleet, 3) == 0
    assert fleet.posts[0].waited_s > 0.01
    assert fleet.take() == (0, BLOCK)
    assert look(fleet, 3, version=7) == 1
    assert worker.versions == [3, 3, 7]
    assert look(fleet, 3, num_left=0) == 0
    fleet.end()
    assert worker.is_ended


def test_blocks_of_the_longest_queue_are_stored_first(tmp_path) -> None:
    fleet, _ = make(tmp_path, [READY, None, None, None], [READY])
    look(fleet, 3)
    assert [post.num_blocks for post in fleet.posts] == [0, 2]
    assert [fleet.take(), fleet.take(), fleet.take()] == [(1, BLOCK), (1, BLOCK), None]


def test_a_dead_collector_ends_the_run_in_one_line(tmp_path) -> None:
    fleet, (worker,) = make(tmp_path, [READY, BLOCK, WorkerGoneError("killed by SIGKILL")])
    (tmp_path / "logs" / "0.txt").write_text("8 worlds on cpu\n")
    with pytest.raises(CollectionError) as error:
        look(fleet, 3)
    assert str(error.value) == (
        "collector 0 (process 1) died (killed by SIGKILL); its last line: 8 worlds on cpu"
    )
    assert worker.is_ended


def test_settings_that_a_collector_refuses_are_a_mistake(tmp_path) -> None:
    fleet, _ = make(tmp_path, [BUILDING, WorkerGoneError("exit code 1")])
    (tmp_path / "logs" / "0.txt").write_text("mqe.config.ConfigError: freeze_time: say 20\n")
    with pytest.raises(ConfigError, match="^freeze_time: say 20$"):
        look(fleet, 2)


def test_a_launcher_that_is_gone_ends_the_run(tmp_path) -> None:
    fleet, _ = make(tmp_path, [CollectionError("the cluster is gone")])
    with pytest.raises(CollectionError, match="^the cluster is gone$"):
        look(fleet, 1)


@pytest.mark.parametrize(
    ("script", "activity"),
    [
        ([READY], "collecting"),
        ([READY, None, "collecting, decision 3"], "collecting, decision 3"),
    ],
)
def test_a_collector_that_hangs_ends_the_run(tmp_path, script: list[Any], activity: str) -> None:
    fleet, (worker,) = make(tmp_path, [*script, *[None] * 50], stall_s=0.05)
    look(fleet, 3)
    time.sleep(0.06)
    with pytest.raises(CollectionError, match=f"no progress for 0 s while {activity}; its last"):
        look(fleet, 1)
    assert worker.is_ended


def test_a_start_may_take_minutes(tmp_path) -> None:
    fleet, _ = make(tmp_path, [BUILDING, *[None] * 50], stall_s=0.01)
    look(fleet, 2)
    time.sleep(0.02)
    assert look(fleet, 1) == 0
