"""harl_mapush.collectors.supervisor: starts, limits, deaths and the end of collectors."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harl_mapush.collectors.collector import (
    BUILDING,
    READY,
    Block,
    BlockReport,
    Identity,
    Weights,
)
from harl_mapush.collectors.launchers import CollectionError, WorkerGoneError
from harl_mapush.collectors.supervisor import Supervisor
from mqe.config import ConfigError

BLOCK = Block((np.zeros(1),), BlockReport({}, 1.0, 0.0, {}, None))


class ScriptedWorker:
    """Answers as its script says: messages, seconds of silence, or an exception.

    After the script, it answers every request with a block.
    """

    def __init__(self, script: list[Any]) -> None:
        self.script = list(script)
        self.versions: list[int] = []
        self.num_requests = 0
        self.is_ended = threading.Event()

    def send(self, weights: Weights) -> None:
        self.num_requests += 1
        self.versions.append(weights.version)

    def receive(self) -> Block | str | None:
        if self.script:
            step = self.script.pop(0)
            if isinstance(step, Exception):
                raise step
            if not isinstance(step, float):
                return step
            time.sleep(step)
            return None
        if self.num_requests == 0:
            return None
        self.num_requests -= 1
        return BLOCK

    def describe(self) -> str:
        return "process 1"

    def stack(self) -> str:
        return "toy.py:1 step"

    def end(self, timeout_s: float) -> None:
        self.is_ended.set()


def make(
    tmp_path: Path,
    *scripts: list[Any],
    num_collectors: int = 1,
    stall_s: float = 30.0,
) -> tuple[Supervisor, list[ScriptedWorker]]:
    """Prepare collectors. Start number k gets script k."""
    workers: list[ScriptedWorker] = []
    remaining = list(scripts)

    def start(settings: Any, identity: Identity, log: Path) -> ScriptedWorker:
        workers.append(ScriptedWorker(remaining.pop(0) if remaining else [READY]))
        return workers[-1]

    launcher: Any = SimpleNamespace(start=start, wait=lambda workers, timeout_s: time.sleep(0.01))
    logs = tmp_path / "logs"
    return Supervisor({}, num_collectors, 8, launcher, logs, 1, stall_s), workers


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_collector_fills_the_queue_and_goes_on_when_a_block_is_stored(tmp_path) -> None:
    collectors, (*_,) = make(tmp_path)
    collectors.begin(5, Weights(3, 0, []))
    wait_for(lambda: len(collectors.queue) == 2)  # one in work and queue_blocks
    time.sleep(0.3)
    assert len(collectors.queue) == collectors.capacity == 2
    assert collectors.posts[0].waited_s > 0.1
    assert collectors.oldest_version() == 3

    collectors.weights = Weights(7, 0, [])
    versions = []
    while len(versions) < 5:
        collectors.wait(1.0)
        full = collectors.take()
        if full is not None:
            versions.append(full.version)
    assert versions == [3, 3, 7, 7, 7]
    time.sleep(0.3)
    assert collectors.take() is None  # five blocks were requested in all
    assert collectors.oldest_version() is None
    collectors.end()
    assert not collectors.is_alive()


def test_a_dead_collector_is_named_in_one_line_and_replaced(tmp_path, caplog) -> None:
    collectors, workers = make(
        tmp_path, [BUILDING, READY, BLOCK, WorkerGoneError("killed by SIGKILL")]
    )
    (tmp_path / "logs" / "0.txt").write_text("8 worlds on cpu\n")
    collectors.begin(2, Weights(0, 0, []))
    wait_for(lambda: len(collectors.queue) == 2)
    blocks = [collectors.take() for _ in range(2)]
    assert [full is not None and full.starts_anew for full in blocks] == [True, True]
    assert (collectors.num_restarts, collectors.num_lost_episodes) == (1, 8)
    assert workers[0].is_ended.is_set()
    assert [record.getMessage() for record in caplog.records] == [
        "Note: Collector 0 (process 1) died (killed by SIGKILL); its last line: 8 worlds on cpu. "
        "Its unfinished episodes are lost (8 in all so far), and it is restarted."
    ]
    collectors.end()


def test_settings_that_a_collector_refuses_end_the_run_at_once(tmp_path) -> None:
    collectors, workers = make(tmp_path, [BUILDING, WorkerGoneError("exit code 1")])
    (tmp_path / "logs" / "0.txt").write_text("mqe.config.ConfigError: freeze_time: say 20\n")
    collectors.begin(2, Weights(0, 0, []))
    collectors.join(5.0)
    assert len(workers) == 1
    with pytest.raises(ConfigError, match="^freeze_time: say 20$"):
        collectors.take()
    collectors.end()


def test_a_collector_that_dies_again_and_again_ends_the_run(tmp_path) -> None:
    dying = [READY, WorkerGoneError("exit code 1")]
    collectors, workers = make(tmp_path, dying, dying, dying)
    collectors.begin(2, Weights(0, 0, []))
    collectors.join(5.0)
    assert len(workers) == 3
    with pytest.raises(CollectionError, match="died 3 times in a row without a"):
        collectors.take()
    collectors.end()


def test_deaths_with_blocks_in_between_do_not_end_the_run(tmp_path) -> None:
    dying = [READY, BLOCK, WorkerGoneError("exit code 1")]
    collectors, workers = make(tmp_path, *[dying] * 4)
    collectors.begin(6, Weights(0, 0, []))
    num_blocks = 0
    while num_blocks < 6:
        collectors.wait(1.0)
        num_blocks += collectors.take() is not None
    assert (len(workers), collectors.num_restarts) == (5, 4)
    collectors.end()


def test_a_launcher_that_is_gone_ends_the_run_at_once(tmp_path) -> None:
    collectors, _ = make(tmp_path, [CollectionError("the cluster is gone")])
    collectors.begin(2, Weights(0, 0, []))
    collectors.join(5.0)
    with pytest.raises(CollectionError, match="^the cluster is gone$"):
        collectors.take()
    collectors.end()


@pytest.mark.parametrize(
    ("script", "activity", "num_notes"),
    [
        # Imports take minutes on a busy machine; only after ten minutes the process is killed.
        ([*[0.02] * 30], "", 0),
        ([BUILDING, *[0.02] * 30], "building its worlds", 1),
        ([READY, *[0.02] * 8], "collecting", 1),
        ([READY, "collecting, decision 3", *[0.02] * 8], "collecting, decision 3", 1),
    ],
)
def test_a_collector_that_hangs_is_named_with_its_stack(
    tmp_path, caplog, script: list[Any], activity: str, num_notes: int
) -> None:
    collectors, _ = make(tmp_path, [*script, READY], stall_s=0.1)
    collectors.begin(1, Weights(0, 0, []))
    time.sleep(1.0)
    collectors.end()
    notes = [text for text in caplog.messages if "has made no progress" in text]
    assert len(notes) == num_notes
    assert all(f"while {activity}. " in text for text in notes)
    assert all(text.endswith("Its stack: toy.py:1 step") for text in notes)


def test_a_collector_that_hangs_for_twice_the_time_is_replaced(tmp_path, caplog) -> None:
    collectors, workers = make(tmp_path, [READY, *[0.05] * 20], stall_s=0.1)
    collectors.begin(1, Weights(0, 0, []))
    wait_for(lambda: len(collectors.queue) == 1)
    assert len(workers) == 2
    assert workers[0].is_ended.is_set()
    assert "Collector 0 (process 1) is killed after" in caplog.text
    collectors.end()


def test_an_error_of_a_supervisor_ends_the_run(tmp_path) -> None:
    collectors, _ = make(tmp_path, [OSError("no memory\nleft")])
    collectors.begin(1, Weights(0, 0, []))
    collectors.join(5.0)
    with pytest.raises(CollectionError, match=r"OSError: no memory left\)$"):
        collectors.take()
    collectors.end()
