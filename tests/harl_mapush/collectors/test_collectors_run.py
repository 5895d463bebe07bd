"""A run with collectors, on toy worlds. More faults, and more often: tools/faults/collectors.py."""

from __future__ import annotations

import os

import pytest

from tests.support.fault_scripts import script
from tests.support.hooks import Hooks
from tests.support.toy_collectors import make_runner, settings


@pytest.mark.slow
def test_a_run_stores_all_transitions_and_takes_all_updates(caplog):
    caplog.set_level("INFO", "harl_mapush")
    runner = make_runner(settings(1, 8, 640))
    reports = []
    runner.learn([Hooks(on_iteration=reports.append)])
    assert runner.pace.num_stored == 640
    assert runner.collectors.posts[0].num_blocks == 640 // 32
    assert runner.pace.num_learned == int(0.01 * runner.pace.num_counted) > 0
    lines = [line.split("]")[0] for line in reports[-1].health]
    assert lines == ["[Worker 0", "[BufferFiller", "[AsyncTrainer"]
    assert all(0.0 < report.metrics["ingest/storing"] < 1.0 for report in reports)
    assert not runner.collectors.posts[0].worker.process.is_alive()
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if line.startswith("[Worker 0] starts: process ")]) == 1
    assert f"[AsyncTrainer] starts: process {os.getpid()}, on cpu" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["hangs", "stopped", "raises", "queue full", "slow", "dies", "collector killed", "Ctrl-C"],
)
def test_faults_end_well(fault):
    script("collectors.py", "--tries", "1", "--only", fault)
