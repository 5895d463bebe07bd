"""The ends of push episodes, for readers without this library."""

from __future__ import annotations

from typing import Any

from mqe.tasks.drop import SPAWN_HEIGHT
from mqe.tasks.push.posture import HEIGHT_LIMIT
from mqe.tasks.push.settings import PushCfg
from mqe.world import collapse
from mqe.world.objects import OBJECTS, REST_SPEED


def describe_terminations(cfg: PushCfg) -> dict[str, Any]:
    """Describe the terminations in words and values for JSON, for a reader without this library.

    Conditions hold after a control step.
    """
    obj = OBJECTS[cfg.object]
    return {
        "time_limit_s": cfg.episode_length_s,
        "success": _describe_success(cfg),
        "collision": {"trunks_closer_than_m": obj.collision_distance},
        "fall": {
            "roll_limit_rad": cfg.roll_limit,
            "pitch_limit_rad": cfg.pitch_limit,
            "height_limit_m": HEIGHT_LIMIT,
            "robot_height_m": SPAWN_HEIGHT,
            "object_height_m": obj.spawn_height,
            "meaning": "a robot rolls or pitches further, or its trunk's or the object's origin "
            "leaves its height by more than the limit",
        },
        "collapse": {
            "ends_episode": cfg.collapse_ends,
            "low_time_s": collapse.LOW_TIME,
            "rest_time_s": collapse.REST_TIME,
            "meaning": "a trunk's origin stays lower than its low_trunk for low_time, or for "
            "rest_time a knee (the calf's origin) is lower than knee_clearance or a trunk's lowest "
            "point lower than trunk_clearance",
        },
    }


def _describe_success(cfg: PushCfg) -> dict[str, Any]:
    """Describe the conditions for success, each under its own name."""
    success: dict[str, Any] = {
        "object_to_goal_below_m": cfg.success_radius,
        "distance": "horizontal, of the object's origin",
    }
    if cfg.success_heading is not None:
        success |= {
            "heading_error_below_rad": cfg.success_heading,
            "goal_heading_rad": cfg.goal_heading,
            "heading": "of the object in the arena; the nearest of those at which it looks alike",
        }
    if cfg.success_rest_s > 0.0:
        success |= {"rest_s": cfg.success_rest_s, "object_slower_than_m_s": REST_SPEED}
    if not cfg.success_ends:
        success["ends_episode"] = False
    return success
