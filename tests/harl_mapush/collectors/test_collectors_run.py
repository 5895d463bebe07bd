"""A run with collectors, on toy worlds. More faults, and more often: tools/faults/collectors.py."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.fault_scripts import script
from tests.support.hooks import Hooks
from tests.support.toy_collectors import make_runner, settings


@pytest.mark.slow
def test_a_run_survives_a_collector_that_is_killed_and_loses_no_transition(caplog):
    caplog.set_level("INFO", "harl_mapush")
    runner = make_runner(settings(1, 8, 640))
    lines = []

    storing = []

    def kill_one(report):
        lines.append(report.health)
        storing.append(report.metrics["ingest/storing"])
        if report.iteration == 8:
            os.kill(runner.collectors.posts[0].worker.process.pid, signal.SIGKILL)

    runner.learn([Hooks(on_iteration=kill_one)])
    assert runner.pace.num_stored == 640
    assert runner.collectors.posts[0].num_blocks == 640 // 32
    assert (runner.collectors.num_restarts, runner.collectors.num_lost_episodes) == (1, 8)
    assert runner.pace.num_learned == int(0.01 * runner.pace.num_counted) > 0
    assert "died (killed by SIGKILL); its last line: 8 worlds on cpu" in caplog.text
    assert lines[-1][1].endswith("errors 1 (8 episodes lost)")
    assert [line.split("]")[0] for line in lines[-1]] == ["[Collector 0", "[Ingest", "[Learner"]
    assert not runner.collectors.posts[0].worker.process.is_alive()
    said = [record.getMessage() for record in caplog.records]
    starts = [line for line in said if line.startswith("[Collector 0] starts: process ")]
    assert len(starts) == 2
    assert len(set(starts)) == 2
    assert f"[Learner] starts: process {os.getpid()}, on cpu" in said
    assert "[Ingest] starts: thread supervisor, room for 5 blocks" in said
    assert storing
    assert all(0.0 < share < 1.0 for share in storing)
    warm = [line for line in said if line.startswith("[Learner] the warm-up ends: ")]
    assert [line.partition(" stored")[0].rpartition(": ")[2] for line in warm] == ["64 transitions"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["hangs", "raises", "queue full", "slow", "dies", "killed", "Ctrl-C"]
)
def test_faults_end_well(fault):
    script("collectors.py", "--tries", "1", "--only", fault)
