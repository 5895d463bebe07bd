"""The files of a run's curves when the clock jumps."""

from __future__ import annotations

import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush.callbacks.curves import Curves


def points(folder) -> list[tuple[int, float]]:
    log = EventAccumulator(str(folder))
    log.Reload()
    return [(point.step, point.wall_time) for point in log.Scalars("x")]


def test_a_clock_that_was_set_back_between_two_sessions_hides_no_points(
    tmp_path, monkeypatch
) -> None:
    for step, now in ((1, 2_000_000_000.0), (2, 1_000_000_000.0), (3, 1_500_000_000.0)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        curves = Curves(tmp_path, print, purge_step=step)
        curves.add({"x": 0.0}, step)
        curves.close()
    assert [step for step, _ in points(tmp_path)] == [1, 2, 3]
    names = sorted(path.name.split(".")[3] for path in tmp_path.iterdir())
    assert names == ["2000000000", "2000000001", "2000000002"]


def test_a_clock_that_jumps_while_a_run_trains_moves_no_point(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    curves = Curves(tmp_path, print)
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    curves.add({"x": 0.0}, 1)
    curves.close()
    assert points(tmp_path) == [(1, 2_000_000_002.0)]
