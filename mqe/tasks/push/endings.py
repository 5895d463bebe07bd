"""What ends an episode of the push task, in words and numbers that go into JSON."""

from __future__ import annotations

from typing import Any

from mqe.tasks.drop import SPAWN_HEIGHT
from mqe.tasks.push import terminations
from mqe.tasks.push.task import PushTask
from mqe.world import collapse


def describe_endings(task: PushTask) -> dict[str, Any]:
    """Return what ends an episode, for a reader without this library; conditions hold after a
    control step.
    """
    cfg = task.cfg
    return {
        "time_limit_s": cfg.episode_length_s,
        "success": {
            "object_to_goal_below_m": cfg.success_radius,
            "distance": "horizontal, of the object's origin",
        },
        "collision": {"trunks_closer_than_m": task.object.collision_distance},
        "fall": {
            "roll_limit_rad": cfg.roll_limit,
            "pitch_limit_rad": cfg.pitch_limit,
            "height_limit_m": terminations.HEIGHT_LIMIT,
            "robot_height_m": SPAWN_HEIGHT,
            "object_height_m": task.object.spawn_height,
            "meaning": "a robot rolls or pitches further, or its trunk's or the object's origin "
            "leaves its height by "
            "more than the limit",
        },
        "collapse": {
            "ends_episode": cfg.collapse_ends,
            "low_time_s": collapse.LOW_TIME,
            "rest_time_s": collapse.REST_TIME,
            "meaning": "a trunk's origin stays lower than its low_trunk for low_time, or for "
            "rest_time a knee (the "
            "calf's origin) is lower than knee_clearance or a trunk's lowest point lower than "
            "trunk_clearance",
        },
    }
