"""The health of a run with collectors, as lines for the console."""

from __future__ import annotations

from collections.abc import Mapping

from harl_mapush.collectors.fleet import Fleet
from harl_mapush.collectors.pace import Pace


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
