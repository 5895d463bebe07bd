"""The health of a run with collectors: rates, totals and waiting times."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_WINDOW_S = 10.0  # shortest time over which rates are computed
_FULL = 0.8  # share of the queue's capacity beyond which a line of its own says so


class CollectorState(NamedTuple):
    """The counters of one collector."""

    env_steps: int
    num_sent: int  # transitions
    waited_s: float
    version: int  # of its policy
    lag: int  # versions between its last block and the learner


class Snapshot(NamedTuple):
    """All counters at one time."""

    time_s: float
    collectors: tuple[CollectorState, ...]
    num_stored: int  # transitions
    queue: int  # full blocks that wait
    capacity: int
    num_errors: int  # collectors that died
    num_lost_episodes: int
    num_warm: int
    warmup: int
    num_updates: int  # updates of the run
    num_learned: int  # updates in this process
    num_counted: int  # transitions of the updates in this process
    learner_waited_s: float
    lag_mean: float  # versions, of the blocks stored since the last report
    lag_max: int


class Window:
    """The snapshots of the last seconds, with the rates between them."""

    def __init__(self) -> None:
        self._snapshots: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot, and drop snapshots too old for the rates."""
        self._snapshots.append(snapshot)
        while len(self._snapshots) > 2 and snapshot.time_s - self._snapshots[1].time_s >= _WINDOW_S:
            self._snapshots.popleft()

    def scalars(self) -> dict[str, float]:
        """Return rates and waiting times as TensorBoard scalars."""
        old = self._snapshots[0]
        new = self._snapshots[-1]
        span_s = max(new.time_s - old.time_s, 1e-9)
        tagged: dict[str, float] = {}
        for i, (before, now) in enumerate(zip(old.collectors, new.collectors, strict=True)):
            tagged[f"collector{i}/env_steps_per_s"] = (now.env_steps - before.env_steps) / span_s
            tagged[f"collector{i}/waited"] = _share(before.waited_s, now.waited_s, span_s)
            tagged[f"collector{i}/policy_lag"] = now.lag
        return tagged | {
            "ingest/transitions_per_s": (new.num_stored - old.num_stored) / span_s,
            "ingest/queue": new.queue,
            "ingest/errors": new.num_errors,
            "learner/updates_per_s": (new.num_learned - old.num_learned) / span_s,
            "learner/update_ratio": new.num_learned / max(new.num_counted, 1),
            "learner/waited": _share(old.learner_waited_s, new.learner_waited_s, span_s),
            "learner/policy_lag_mean": new.lag_mean,
            "learner/policy_lag_max": new.lag_max,
        }

    def lines(self) -> tuple[str, ...]:
        """Return a line about each collector, about storing and about the learner."""
        new = self._snapshots[-1]
        values = self.scalars()
        lines = []
        for i, now in enumerate(new.collectors):
            rate = values[f"collector{i}/env_steps_per_s"]
            waited = values[f"collector{i}/waited"]
            lines.append(
                f"[Collector {i}] {rate:,.0f} steps/s | sent {now.num_sent:,} | "
                f"waited {100 * waited:.0f} % | policy v{now.version} (lag {now.lag})"
            )
        lost = f" ({new.num_lost_episodes:,} episodes lost)" if new.num_lost_episodes else ""
        lines.append(
            f"[Ingest] +{values['ingest/transitions_per_s']:,.0f}/s | stored {new.num_stored:,} | "
            f"queue {new.queue}/{new.capacity} | errors {new.num_errors}{lost}"
        )
        if new.queue > _FULL * new.capacity:
            lines.append(
                f"[Ingest] the queue is above {100 * _FULL:.0f} % ({new.queue}/{new.capacity}): "
                "collectors wait while it is full, and nothing is dropped"
            )
        lines.append(
            f"[Learner] warm-up {new.num_warm:,}/{new.warmup:,} | updates {new.num_updates:,} "
            f"(ratio {values['learner/update_ratio']:.4g}) | "
            f"waited {100 * values['learner/waited']:.0f} %"
        )
        return tuple(lines)


def _share(before_s: float, now_s: float, span_s: float) -> float:
    return min(max(now_s - before_s, 0.0) / span_s, 1.0)
