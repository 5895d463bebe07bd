"""harl_mapush.collectors.fleet: starts, limits, deaths and the end of collectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harl_mapush.collectors import fleet as fleet_module
from harl_mapush.collectors.collector import BlockReport, Identity
from harl_mapush.collectors.exchange import Channel
from harl_mapush.collectors.fleet import Fleet
from harl_mapush.collectors.launchers import CollectionError, FullBlock, WorkerGoneError
from harl_mapush.learning.off_policy.replay_buffer import replay_shape
from mqe.config import ConfigError
from tests.support.toy_collectors import settings as toy_settings

REPORT = BlockReport({}, 1.0, 0.0, {}, None)
BUILT = "built"
DECISION = "a decision"
BLOCK = "a full block"


class ScriptedWorker:
    """Follows its script, a step a look: an event, None for silence, or an exception.

    After the script, it fills all free blocks at once.
    """

    def __init__(self, script: list[Any], channel: Channel) -> None:
        self.script = list(script)
        self.channel = channel
        self.free_blocks: list[int] = []
        self.is_ended = False

    def free(self, number: int) -> None:
        self.free_blocks.append(number)

    def receive(self) -> FullBlock | None:
        step = self.script.pop(0) if self.script else BLOCK
        if isinstance(step, Exception):
            raise step
        if step == BUILT:
            self.channel.counts[0] = 0
        elif step == DECISION:
            self.channel.counts[0] += 1
        elif step == BLOCK and self.free_blocks:
            return FullBlock(self.free_blocks.pop(0), REPORT, 0.5, 1.0)
        return None

    def describe(self) -> str:
        return "process 1"

    def end(self) -> None:
        self.is_ended = True


def make(
    tmp_path: Path, *scripts: list[Any], stall_s: float = 30.0
) -> tuple[Fleet, list[ScriptedWorker]]:
    """Start a collector with two blocks for each script."""
    workers: list[ScriptedWorker] = []

    def start(settings: Any, identity: Identity, channel: Channel, log: Path) -> ScriptedWorker:
        workers.append(ScriptedWorker(scripts[identity.number], channel))
        return workers[-1]

    runner = {"queue_blocks": 1, "stall_time": stall_s, "num_steps": 1}
    cfg = toy_settings(len(scripts), 2 * len(scripts), 2, runner=runner)
    sizes = {"num_agents": 1, "obs_size": 1, "action_size": 1, "num_views": 1, "state_size": 1}
    shape = replay_shape(4, 2, num_rings=len(scripts), **sizes)
    team: Any = SimpleNamespace(unique_actors=[], num_updates=0)
    return Fleet(cfg, shape, team, start, tmp_path / "logs"), workers


def look(fleet: Fleet, times: int) -> None:
    for _ in range(times):
        fleet.look()


def test_a_collector_fills_its_blocks_and_waits_until_one_is_stored(tmp_path) -> None:
    fleet, (worker,) = make(tmp_path, [BUILT, DECISION, DECISION])
    post = fleet.posts[0]
    look(fleet, 5)
    assert fleet.num_queued == fleet.capacity == 2
    assert worker.free_blocks == []
    assert fleet.longest_queue() is post
    worker.free(post.queue.popleft().number)
    look(fleet, 1)
    assert post.is_full
    assert post.num_transitions == 4  # two decisions of two worlds
    fleet.end()
    assert worker.is_ended


def test_blocks_of_the_longest_queue_are_stored_first(tmp_path) -> None:
    fleet, _ = make(tmp_path, [BUILT, None, None, None], [BUILT])
    look(fleet, 3)
    assert [len(post.queue) for post in fleet.posts] == [0, 2]
    assert fleet.longest_queue() is fleet.posts[1]


def test_a_dead_collector_ends_the_run_in_one_line(tmp_path) -> None:
    fleet, (worker,) = make(tmp_path, [BUILT, BLOCK, WorkerGoneError("killed by SIGKILL")])
    (tmp_path / "logs" / "0.txt").write_text("8 worlds on cpu\n")
    with pytest.raises(CollectionError) as error:
        look(fleet, 3)
    assert str(error.value) == (
        "collector 0 (process 1) died (killed by SIGKILL); its last line: 8 worlds on cpu"
    )
    assert worker.is_ended


def test_settings_that_a_collector_refuses_are_a_mistake(tmp_path) -> None:
    fleet, _ = make(tmp_path, [None, WorkerGoneError("exit code 1")])
    (tmp_path / "logs" / "0.txt").write_text("mqe.config.ConfigError: freeze_time: say 20\n")
    with pytest.raises(ConfigError, match="^freeze_time: say 20$"):
        look(fleet, 2)


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that sets the fleet's clock forward, which stands otherwise."""
    start = time.monotonic()
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: start + sum(waits))
    monkeypatch.setattr(fleet_module, "time", clock)
    return waits.append


def test_a_collector_that_hangs_ends_the_run(tmp_path, wait) -> None:
    fleet, (worker,) = make(tmp_path, [BUILT, DECISION, *[None] * 50], stall_s=50.0)
    look(fleet, 3)
    wait(60.0)
    with pytest.raises(CollectionError, match="no progress for 60 s while collecting; its last"):
        look(fleet, 1)
    assert worker.is_ended


def test_decisions_and_full_blocks_are_signs_of_life(tmp_path, wait) -> None:
    fleet, (worker,) = make(tmp_path, [BUILT, DECISION, DECISION, DECISION], stall_s=50.0)
    look(fleet, 1)
    for _ in range(4):
        wait(30.0)
        look(fleet, 1)
    wait(60.0)  # all blocks are full
    look(fleet, 1)
    assert not worker.is_ended


def test_a_start_may_take_minutes(tmp_path, wait) -> None:
    fleet, (worker,) = make(tmp_path, [None] * 50, stall_s=50.0)
    look(fleet, 2)
    wait(60.0)
    look(fleet, 1)
    assert not worker.is_ended
