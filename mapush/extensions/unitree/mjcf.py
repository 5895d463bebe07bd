"""Robots from MJCF files in Unitree's simulator, unitree_mujoco.

Bodies, joints, collision shapes, contact parameters, torque limits and physics options are the
file's. Its motors take torques. The vendor's bridge computes them as tau + kp (q* - q) + kd (dq* -
dq) from a message. Here the actuators compute them, with tau = 0 and dq* = 0. Their control is q*,
and their order is the joints'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np

from harl_mapush.config import register_suite
from mqe.config import ConfigError
from mqe.notices import note
from mqe.world.robots import MODEL_READERS
from mqe.world.robots.build import make_servo
from mqe.world.robots.maker_files import read_spec
from mqe.world.robots.robot import LEG_JOINTS, LEGS, RobotCfg

FOLDER = "unitree_robots"  # in a checkout of unitree_mujoco, with NAME/NAME.xml
_TOLERANCE = 1e-3  # [m] allowed difference between the file's legs and the robot's
_OPTIONS = (
    "timestep",
    "integrator",
    "cone",
    "impratio",
    "solver",
    "iterations",
    "tolerance",
    "ls_iterations",
    "ls_tolerance",
)


def robot_of_file(robot: RobotCfg, path: str) -> RobotCfg:
    """Return ``robot`` with an MJCF's bodies. ``path`` is the file or a checkout with it.

    Other things in the file's world are left out with a note. Stance, stiffness, damping and gait
    stay. Raises ConfigError if the file has another robot.
    """
    file = Path(path).expanduser().absolute()
    if not file.exists():
        raise ConfigError(
            f"env.model={path}: there is no such file or folder; name a checkout of unitree_mujoco"
        )
    if file.is_dir():
        folder = file / FOLDER
        file = folder / robot.name / f"{robot.name}.xml"
        if not file.is_file():
            robot_names = [
                one.name for one in folder.glob("*") if (one / f"{one.name}.xml").is_file()
            ]
            raise ConfigError(
                f"env.model={path}: there is no {FOLDER}/{robot.name}/{robot.name}.xml; name a "
                "checkout of unitree_mujoco, and with env.robots one of its robots (here: "
                f"{', '.join(sorted(robot_names)) or 'none'})"
            )
    theirs = _read(file)
    _check(theirs, robot, file)
    world = theirs.worldbody
    things = [geom for geom in world.geoms if geom.type != mujoco.mjtGeom.mjGEOM_PLANE]
    things += world.bodies[1:]  # beside the robot
    if things:
        note(
            f"env.model={path}: only the robot is used; things left out of its world: {len(things)}"
        )
    return replace(robot, file=VendorFile(str(file)), motors=None, physical=None)


@dataclass(frozen=True)
class VendorFile:
    """One robot's MJCF, with the vendor's names."""

    path: str

    def set_options(self, spec: mujoco.MjSpec) -> None:
        """Copy the file's physics options into ``spec``."""
        theirs = _read(Path(self.path)).option
        for name in _OPTIONS:
            setattr(spec.option, name, getattr(theirs, name))

    def add(
        self,
        spec: mujoco.MjSpec,
        robot: RobotCfg,
        name: str,
        color: tuple[float, float, float, float],
        collision: int,
        hits: int,
    ) -> None:
        """Add the robot under the world, with names as in ``add_robot``.

        ``collision`` and ``hits`` are MuJoCo's bit masks contype and conaffinity of the robot's
        geoms. The robot collides with itself, as in the vendor's scene.
        """
        theirs = _read(Path(self.path))
        limits = {motor.target: motor.ctrlrange.copy() for motor in theirs.actuators}
        for part in (*theirs.actuators, *theirs.sensors, *theirs.keys):
            theirs.delete(part)
        for geom in theirs.geoms:
            if geom.contype == 0 and geom.conaffinity == 0:  # drawn only
                theirs.delete(geom)
            else:
                geom.contype = collision
                geom.conaffinity = hits | collision
                geom.rgba = color
        for mesh in theirs.meshes:
            theirs.delete(mesh)

        # Give trunk, feet and joints the names of our own robots.
        trunk = theirs.body(f"{LEGS[0]}_hip").parent
        trunk.name = "trunk"
        trunk.pos = (0.0, 0.0, robot.standing_height)
        trunk.joints[0].name = "root"
        for leg in LEGS:
            theirs.geom(leg).name = f"{leg}_foot"
        for joint in _joints():
            theirs.joint(f"{joint}_joint").name = joint
        spec.worldbody.add_frame().attach_body(trunk, f"{name}/", "")
        for joint in _joints():
            actuator = spec.add_actuator(
                name=f"{name}/{joint}", target=f"{name}/{joint}", trntype=mujoco.mjtTrn.mjTRN_JOINT
            )
            make_servo(actuator, robot, limits[f"{joint}_joint"])


def _joints() -> list[str]:
    return [f"{leg}_{joint}" for leg in LEGS for joint in LEG_JOINTS]


def _read(file: Path) -> mujoco.MjSpec:
    try:
        return read_spec(file)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"env.model={file}: not an MJCF that MuJoCo reads ({reason})") from None


def _check(theirs: mujoco.MjSpec, robot: RobotCfg, file: Path) -> None:
    """Raise ConfigError unless a file has the bodies, joints, feet and motors of ``robot``."""

    def refuse(what: str) -> ConfigError:
        return ConfigError(
            f"env.model={file}: {what}, so that this is no {robot.name} as in unitree_mujoco; name "
            "its own file, or another env.robots"
        )

    for leg, cfg in zip(LEGS, robot.legs, strict=True):
        places = ((*cfg.hip_pos, 0.0), (0.0, cfg.side, 0.0), (0.0, 0.0, -robot.link_lengths[0]))
        for joint, position in zip(LEG_JOINTS, places, strict=True):
            body = theirs.body(f"{leg}_{joint}")
            if body is None:
                raise refuse(f"it has no body {leg}_{joint}")
            if np.abs(body.pos - position).max() > _TOLERANCE:
                raise refuse(f"body {leg}_{joint} is at {body.pos.tolist()} m, not at {position}")
            if theirs.joint(f"{leg}_{joint}_joint") is None:
                raise refuse(f"it has no joint {leg}_{joint}_joint")
        if theirs.geom(leg) is None:
            raise refuse(f"it has no geom {leg}, the foot")
    limits = {motor.target: motor.ctrlrange for motor in theirs.actuators}
    for joint in _joints():
        low, high = limits.get(f"{joint}_joint", (0.0, 0.0))
        if not low < high:
            raise refuse(f"joint {joint}_joint has no motor with a ctrlrange")


MODEL_READERS.register("unitree", robot_of_file)
register_suite(Path(__file__).with_name("sim2sim.yaml"))
