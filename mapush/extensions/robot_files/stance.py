"""A robot's nominal stance, and its height when it stands there."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

import mujoco

from mqe.world.robots.build import add_robot
from mqe.world.robots.robot import RobotCfg, Vector
from mqe.world.scene import CONTACT_SOLREF, PHYSICS_DT

# The Go1's stance: hips turned outwards, thighs beyond the angle with the feet below the hips.
_HIP = 0.1  # [rad]
_CALF = -1.5  # [rad]
_LEAN = {"F": 0.05, "R": 0.25}  # [rad]
_LOW = 0.77  # height of a collapsed trunk over the standing height: the Go1's
_SETTLING_STEPS = round(3.0 / PHYSICS_DT)
_UPRIGHT = 0.97  # least vertical component of a standing trunk's z axis
_SPAWN_GAP = 0.01  # [m] under the feet at the start


def nominal_angles(leg: str, lengths: Sequence[float]) -> Vector:
    """Return hip, thigh and calf angles [rad] of the nominal stance.

    ``leg`` is one of ``LEGS``, ``lengths`` are the thigh's and the calf's [m].
    """
    thigh, calf = lengths
    below = math.atan2(-calf * math.sin(_CALF), thigh + calf * math.cos(_CALF))
    left = 1.0 if leg.endswith("L") else -1.0
    return left * _HIP, round(below + _LEAN[leg[0]], 3), _CALF


def stand(robot: RobotCfg, notes: list[str]) -> RobotCfg:
    """Return ``robot`` with the heights measured after three seconds in its stance.

    It walks as high as it stands. A robot that falls gets the height of its unloaded legs, and a
    note.
    """
    straight = _leg_height(robot)
    arena = files("mqe") / "assets" / "arena.xml"
    spec = mujoco.MjSpec.from_string(arena.read_text(encoding="utf-8"))
    spec.option.timestep = PHYSICS_DT
    spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 1.0))
    spawned = replace(robot, standing_height=straight + _SPAWN_GAP)
    # Its parts collide with the floor alone.
    add_robot(spec, spawned, robot.name, (0.5, 0.5, 0.5, 1.0), collision=2, hits=1)
    for geom in spec.geoms:
        geom.solref[:2] = CONTACT_SOLREF
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qpos[7:] = robot.joint_pos
    data.ctrl[:] = robot.joint_pos
    mujoco.mj_step(model, data, _SETTLING_STEPS)
    height = float(data.qpos[2])
    is_standing = data.xmat[1, 8] > _UPRIGHT and height > _LOW * straight
    names = {model.geom(geom).name.rpartition("_")[2] for geom in data.contact.geom.flat}
    if not is_standing:
        notes.append("it falls in its nominal stance: correct stiffness, joint_pos or torque_limit")
        height = straight
    elif names - {"foot", "floor"}:
        notes.append("it stands on more than its feet: correct the calves' shapes")
    height = round(height, 4)
    low = round(_LOW * height, 4)
    return replace(robot, standing_height=height, walking_height=height, low_height=low)


def _leg_height(robot: RobotCfg) -> float:
    """Return the trunk's height [m] over unloaded feet, the largest of the legs'."""
    thigh_length, calf_length = robot.link_lengths
    heights = [-wheel[2] for wheel in robot.wheels]
    for leg in robot.legs:
        hip, thigh, calf = leg.joint_pos
        plane = thigh_length * math.cos(thigh) + calf_length * math.cos(thigh + calf)
        heights.append(math.cos(hip) * plane - leg.side * math.sin(hip))
    return max(heights) + robot.foot_radius
