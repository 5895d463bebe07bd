"""A run with collectors, on toy worlds. More faults, and more often: tools/faults/collectors.py."""

from __future__ import annotations

import pytest

from tests.support.fault_scripts import script
from tests.support.hooks import Hooks
from tests.support.toy_collectors import make_runner, settings


@pytest.mark.slow
def test_a_run_stores_all_transitions_and_takes_all_updates():
    runner = make_runner(settings(1, 8, 640))
    reports = []
    runner.learn([Hooks(on_iteration=reports.append)])
    assert runner.experience.replay.num_added == [640 // 8]
    # The block of the 64th transition ends the warm-up.
    assert runner.algorithm.num_updates == int(0.01 * (640 - 32)) == 6
    assert sum(report.metrics["learner/updates_per_s"] > 0.0 for report in reports) == 6
    assert all(report.metrics["collector0/env_steps_per_s"] > 0.0 for report in reports[:1])
    lines = [line.split("]")[0] for line in reports[-1].health]
    assert lines == ["[Worker 0", "[BufferFiller", "[AsyncTrainer"]
    assert all(0.0 <= report.metrics["learner/waited"] < 1.0 for report in reports)
    assert not runner.collectors.posts[0].worker.process.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["hangs", "stopped", "raises", "queue full", "slow", "dies", "collector killed", "Ctrl-C"],
)
def test_faults_end_well(fault):
    script("collectors.py", "--tries", "1", "--only", fault)
