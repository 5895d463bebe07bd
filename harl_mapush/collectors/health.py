"""The health of a run with collectors: rates, and lines for the console."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from harl_mapush.collectors.pace import Pace
from harl_mapush.collectors.supervisor import Supervisor

_WINDOW_S = 10.0  # shortest time over which rates are computed
_FULL = 0.8  # share of the queue's capacity beyond which a line of its own says so


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


def lines(
    scalars: Mapping[str, float], collectors: Supervisor, pace: Pace, form: str = "one"
) -> tuple[str, ...]:
    """Return a line about each collector, about storing and about the learner.

    ``scalars`` are the curves of TensorBoard. ``form`` is ``logger.lines``.
    """
    if form == "async":
        return _lines_of_mapush(scalars, collectors, pace)
    said = []
    for post in collectors.posts:
        name = f"collector{post.number}"
        said.append(
            f"[Collector {post.number}] {scalars[f'{name}/env_steps_per_s']:,.0f} steps/s | "
            f"sent {post.num_blocks * pace.block:,} | "
            f"waited {100 * scalars[f'{name}/waited']:.0f} % | "
            f"policy v{post.version} (lag {scalars[f'{name}/policy_lag']:.0f})"
        )
    num_lost = collectors.num_lost_episodes
    lost = f" ({num_lost:,} episodes lost)" if num_lost else ""
    num_queued = f"{scalars['ingest/queue']:.0f}/{collectors.capacity}"
    said.append(
        f"[Ingest] +{scalars['ingest/transitions_per_s']:,.0f}/s | stored {pace.num_stored:,} | "
        f"queue {num_queued} | errors {collectors.num_restarts}{lost}"
    )
    if scalars["ingest/queue"] > _FULL * collectors.capacity:
        said.append(
            f"[Ingest] the queue is above {100 * _FULL:.0f} % ({num_queued}): "
            "collectors wait while it is full, and nothing is dropped"
        )
    said.append(
        f"[Learner] warm-up {pace.num_warm:,}/{pace.warmup:,} | "
        f"updates {pace.algorithm.num_updates:,} (ratio {scalars['learner/update_ratio']:.4g}) | "
        f"waited {100 * scalars['learner/waited']:.0f} %"
    )
    return tuple(said)


def _lines_of_mapush(
    scalars: Mapping[str, float], collectors: Supervisor, pace: Pace
) -> tuple[str, ...]:
    """Return lines in the form of MAPush's asynchronous trainer."""
    said = [
        f"[Worker {post.number}] Sent {post.num_blocks * pace.block} transitions | "
        f"Rate {scalars[f'collector{post.number}/env_steps_per_s']:.1f} steps/s"
        for post in collectors.posts
    ]
    said.append(
        f"[BufferFiller] Rate {scalars['ingest/transitions_per_s']:.1f}/s | "
        f"Buffer {pace.num_stored} | Queue {scalars['ingest/queue']:.0f}/{collectors.capacity} | "
        f"Errors {collectors.num_restarts}"
    )
    said.append(
        f"[AsyncTrainer] Buffer warmup {pace.num_warm}/{pace.warmup} | "
        f"Updates {pace.algorithm.num_updates}"
    )
    return tuple(said)
