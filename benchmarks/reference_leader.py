"""The reference's high level, to compare with: observations, actions and rewards as published.

``mapush train --import navigation_baselines reference_leader --config reference_leader.yaml``

The rewards pay up to 0.8 a control step for waiting beside the goal, and 2 once for arriving.
Places are in world coordinates from the middle of the arena's wall at low x.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import mapush
from mapush.extensions.navigate import entry as entry  # registers the task
from mapush.extensions.navigate.incentives import PAID_FOR_WAITING
from mapush.extensions.navigate.maps.arena_map import MOST_OBSTACLES
from mapush.extensions.navigate.settings import ACTIONS, OBSERVED, PRESETS, NavigateCfg
from mqe.world.geometry import TWO_PI, length, roll_pitch_of

TASK = "go1push_upper"
_ARENA_SHARE = 11.0 / 15.0  # length of the sub-goals' area over the arena's, along y


def nearness(distance: Tensor) -> Tensor:
    """Return 1 / (1 + d) for distances d (...) [m]."""
    return 1.0 / (1.0 + distance)


def target(scene: Any) -> Tensor:
    """1 / (1 m + distance between object and goal)"""
    return nearness(scene.state.goal_distance)


def obstacle_nearness(scene: Any) -> Tensor:
    """Sum over obstacles: 1 / (1 m + distance between sub-goal and obstacle centre)"""
    offset = scene.state.obstacle_pos[..., :2] - scene.plan.subgoal.unsqueeze(1)
    return (nearness(length(offset)) * scene.is_obstacle).sum(dim=1)


def trajectory(scene: Any) -> Tensor:
    """1 / (1 m + distance between sub-goal and planned sub-goal)"""
    return nearness(length(scene.plan.subgoal - scene.plan.planned))


def _in_arena(scene: Any, places: Tensor) -> Tensor:
    """Return places (..., 2 or 3) [m] from the middle of the wall at low x."""
    moved = places.clone()
    moved[..., 0] += scene.navigate.problem.arena[0] / 2
    return moved


def robots_in_arena(scene: Any) -> Tensor:
    """Robot positions in the arena"""
    return _in_arena(scene, scene.state.robot_pos).flatten(1)


def robots_rpy(scene: Any) -> Tensor:
    """Robot roll, pitch and yaw in [0, 2 pi)"""
    roll, pitch = roll_pitch_of(scene.state.robot_rotation)
    angles = torch.stack((roll, pitch, scene.state.robot_yaw), dim=-1)
    return torch.remainder(angles, TWO_PI).flatten(1)


def subgoal_in_arena(scene: Any) -> Tensor:
    """Sub-goal position in the arena"""
    return _in_arena(scene, scene.plan.subgoal)


def object_in_arena(scene: Any) -> Tensor:
    """Object position in the arena"""
    return _in_arena(scene, scene.state.object_pos[:, :2])


def object_quat(scene: Any) -> Tensor:
    """Object quaternion, x, y, z, w"""
    return scene.state.body_quat[:, -1].roll(-1, 1)


def obstacles_in_arena(scene: Any) -> Tensor:
    """Positions of all obstacles in the arena"""
    return _in_arena(scene, scene.state.obstacle_pos)[..., :2].flatten(1)


def planned_in_arena(scene: Any) -> Tensor:
    """Planned sub-goal position in the arena"""
    return _in_arena(scene, scene.plan.planned)


def placed(
    action: Tensor, planned: Tensor, place: Tensor, cfg: NavigateCfg, arena: tuple[float, float]
) -> Tensor:
    """Return the sub-goals (N, 2) [m] anywhere in the arena."""
    x, y = (0.5 * side * part for side, part in zip(arena, action.unbind(dim=1), strict=True))
    return torch.stack((x, _ARENA_SHARE * y), dim=1)


_OBSERVED = {
    robots_in_arena: "m",
    robots_rpy: "rad",
    subgoal_in_arena: "m",
    object_in_arena: "m",
    object_quat: "1",
    obstacles_in_arena: "m",
    planned_in_arena: "m",
}
for _function, _unit in _OBSERVED.items():
    _name = _function.__name__
    mapush.register_state(_name, _function, unit=_unit, task=TASK)
    mapush.register_observation(
        _name,
        lambda scene, f=_function: f(scene).unsqueeze(1),
        help=str(_function.__doc__),
        unit=_unit,
        task=TASK,
    )
for _function in (target, obstacle_nearness, trajectory):
    mapush.register_reward(_function.__name__, _function, task=TASK)
PAID_FOR_WAITING.update(target=1.0, obstacle_nearness=float(MOST_OBSTACLES), trajectory=1.0)
PRESETS.register(
    "reference",
    {
        "progress": 0.0,
        "success": 2.0,
        "failure": 0.0,
        "object_contact": 0.0,
        "robot_contact": 0.0,
        "time": 0.0,
        "target": 0.3,
        "obstacle_nearness": -0.1,
        "trajectory": 0.5,
    },
)
_NAMES = tuple(function.__name__ for function in _OBSERVED)
OBSERVED.register("reference", (_NAMES, _NAMES))
ACTIONS.register("arena", placed)
