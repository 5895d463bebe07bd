"""The health of a run with collectors: rates, and lines for the console."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from harl_mapush.collectors.fleet import Fleet
from harl_mapush.collectors.pace import Pace

_WINDOW_S = 10.0  # shortest time over which rates are computed


class Rates:
    """Growth per second of counters, over the last seconds."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, Mapping[str, float]]] = deque()

    def add(self, time_s: float, counters: Mapping[str, float]) -> None:
        """Add counters by name, and drop counters too old for the rates."""
        self._history.append((time_s, counters))
        while len(self._history) > 2 and time_s - self._history[1][0] >= _WINDOW_S:
            self._history.popleft()

    def by_name(self) -> dict[str, float]:
        """Return the rates."""
        old_s, old = self._history[0]
        new_s, new = self._history[-1]
        span_s = max(new_s - old_s, 1e-9)
        return {name: (new[name] - old[name]) / span_s for name in new}


def lines(scalars: Mapping[str, float], fleet: Fleet, pace: Pace) -> tuple[str, ...]:
    """Return a line about each collector, about storing and about the learner.

    ``scalars`` are the curves of TensorBoard. The lines begin as those of MAPush's asynchronous
    trainer.
    """
    workers = [
        f"[Worker {post.number}] Sent {post.num_blocks * pace.block} transitions | "
        f"Rate {scalars[f'collector{post.number}/env_steps_per_s']:.1f} steps/s | "
        f"Waited {100 * scalars[f'collector{post.number}/waited']:.0f} % | "
        f"Policy {post.version} (lag {pace.algorithm.num_updates - post.version})"
        for post in fleet.posts
    ]
    return (
        *workers,
        f"[BufferFiller] Rate {scalars['ingest/transitions_per_s']:.1f}/s | "
        f"Buffer {pace.num_stored} | Queue {fleet.num_queued}/{fleet.capacity} | "
        f"Storing {100 * scalars['ingest/storing']:.0f} %",
        f"[AsyncTrainer] Buffer warmup {min(len(pace.experience.replay), pace.warmup)}/"
        f"{pace.warmup} | Updates {pace.algorithm.num_updates} "
        f"(ratio {scalars['learner/update_ratio']:.4g}) | "
        f"Waited {100 * scalars['learner/waited']:.0f} %",
    )
