"""Scene states from numbers."""

from __future__ import annotations

from torch import Tensor

from mqe.world.robots import ROBOTS, Robots
from mqe.world.state import SceneState

GO1 = ROBOTS["go1"]
DEFAULT_JOINT_POS = GO1.joint_pos  # [rad]


def team(num_robots: int, name: str = "go1") -> Robots:
    """Robots of one kind."""
    return Robots([ROBOTS[name]] * num_robots)


def make_scene_state(robot_pos: Tensor, **fields: Tensor) -> SceneState:
    """A state with robots at (N, A, 3) and an object. Other ``fields`` default to 0, or to identity
    rotation.
    """
    n, a = robot_pos.shape[:2]
    state = SceneState.zeros(n, a, has_object=True)
    return changed(state, robot_pos=robot_pos, **fields)


def changed(state: SceneState, **fields: Tensor) -> SceneState:
    """The same state but for ``fields``."""
    other = state.like(state.rows.clone())
    for name, values in fields.items():
        getattr(other, name)[:] = values
    return other
