"""The health of a run with collectors, as lines for the console."""

from __future__ import annotations

from collections.abc import Mapping

from harl_mapush.collectors.fleet import Fleet
from harl_mapush.collectors.learner import ReplayLearner


def lines(
    scalars: Mapping[str, float], fleet: Fleet, team: ReplayLearner, num_stored: int
) -> tuple[str, ...]:
    """Return a line about each collector, about storing and about the learner.

    ``scalars`` are the curves of TensorBoard, ``num_stored`` the transitions in the replay buffer.
    The lines begin as those of MAPush's asynchronous trainer.
    """
    workers = [
        f"[Worker {post.number}] Sent {post.num_transitions} transitions | "
        f"Rate {scalars.get(f'collector{post.number}/env_steps_per_s', 0.0):.1f} steps/s | "
        f"Waited {100 * scalars.get(f'collector{post.number}/waited', 0.0):.0f} % | "
        f"Policy {post.version} (lag {team.num_updates - post.version})"
        for post in fleet.posts
    ]
    return (
        *workers,
        f"[BufferFiller] Rate {scalars['ingest/transitions_per_s']:.1f}/s | "
        f"Buffer {num_stored} | Queue {fleet.num_queued}/{fleet.capacity}",
        f"[AsyncTrainer] Buffer warmup {min(num_stored, team.cfg.warmup)}/{team.cfg.warmup} | "
        f"Updates {team.num_updates} (ratio {scalars['learner/update_ratio']:.4g}) | "
        f"Waited {100 * scalars['learner/waited']:.0f} %",
    )
