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
def test_a_run_that_ends_within_an_iteration_goes_on_with_its_next_block():
    """Two collectors, so that an iteration has two blocks. The run ends after the first."""
    cfg = settings(2, 8, 64)
    runner = make_runner(cfg)
    replay = runner.experience.replay

    def end_after_a_block() -> None:
        if sum(replay.num_added):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.learn([Hooks(on_wait=end_after_a_block)])
    stored = sum(replay.num_added)
    assert runner.progress.iteration == 0
    assert stored == cfg.runner.num_steps
    resumed = make_runner(cfg)
    resumed.load_state_dict(runner.state_dict())
    resumed.learn()
    blocks = resumed.progress.num_iterations * cfg.runner.collectors
    assert sum(resumed.experience.replay.num_added) == blocks * cfg.runner.num_steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["hangs", "stopped", "raises", "queue full", "slow", "dies", "collector killed", "Ctrl-C"],
)
def test_faults_end_well(fault):
    script("collectors.py", "--tries", "1", "--only", fault)
