"""Things besides robots: bodies, joints, sites and tendons from MJCF files, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from mqe.config import ConfigError, reason_of, unknown
from mqe.notices import note
from mqe.world.geometry import quat_from_yaw, rotation_matrix
from mqe.world.robots.maker_files import read_spec

_LARGEST = 12.0  # [m] from the arena's middle to its walls
_MANY_TRIANGLES = 5_000  # of one mesh
# MuJoCo's words in an error, and the way out
_HINTS = {
    "mjMINVAL": "give every moving body a geom with mass, or an inertial",
    "repeated name": "name every joint where a body has several; leave flexible bodies out",
    "opening file": "paths of meshes and textures start at the file's folder, or at its meshdir",
}
_CONSTANTS = ("qpos0", "body_pos", "body_quat", "jnt_pos", "jnt_axis", "site_pos", "site_quat")
_FREE = mujoco.mjtJoint.mjJNT_FREE
_SLIDE = mujoco.mjtJoint.mjJNT_SLIDE
_BALL = mujoco.mjtJoint.mjJNT_BALL


@dataclass(frozen=True)
class Thing:
    """Bodies of an MJCF file in a scene, ``<name>/<name in the file>``.

    A joint without a name gets its body's name. A rope of ``rope`` [m] ties every robot's trunk to
    the site ``hook``, in which ``{}`` is the robot's number. Without a length the trunk's rear is
    welded to the site, whose x axis is the robot's.
    """

    name: str
    mjcf: str | Path  # a file, or MJCF as text
    hook: str = ""
    rope: float = 0.0

    def error(self, reason: str) -> ConfigError:
        """Return an error about the thing. ``reason`` ends with a way out."""
        return ConfigError(f"thing {self.name!r}: {reason}")


def add_thing(spec: mujoco.MjSpec, thing: Thing, collision: int, hits: int) -> None:
    """Add a thing to a scene with robots. Raise ConfigError for an impossible one.

    ``collision`` and ``hits`` are MuJoCo's bit masks contype and conaffinity of all its geoms that
    collide in the file.
    """
    parts = (*spec.bodies, *spec.geoms, *spec.sites)
    names = {part.name.partition("/")[0] for part in parts} - {""}
    if not thing.name.isidentifier() or thing.name in names:
        raise thing.error(
            f"the name must be a word other than {', '.join(sorted(names))}; name it otherwise"
        )
    child = _read(thing)
    for geom in child.geoms:
        if geom.contype or geom.conaffinity:
            geom.contype = collision
            geom.conaffinity = hits
        # The file's friction and softness, not the floor's
        geom.priority = 2
    # The scene's own, without MuJoCo's warning of a conflict
    child.option = spec.option
    child.memory = spec.memory
    spec.attach(child, prefix=f"{thing.name}/", frame=spec.worldbody.add_frame())


def tie(spec: mujoco.MjSpec, thing: Thing, robot: int, reach: float) -> None:
    """Rope or weld a robot's trunk, ``reach`` [m] behind its origin, to the thing's hook."""
    prefix = f"{thing.name}/"
    hook = prefix + thing.hook.replace("{}", str(robot))
    sites = [site.name for site in spec.sites if site.name.startswith(prefix)]
    if hook not in sites:
        raise thing.error(unknown("hook", hook, sites))
    is_welded = thing.rope <= 0.0
    if is_welded and any(weld.name2 == hook for weld in spec.equalities):
        raise thing.error(f"two robots welded to {hook} overlap; say hook='hook{{}}', or rope=1.0")
    trunk = f"robot{robot}/trunk"
    start = f"{trunk}-{hook}"
    spec.body(trunk).add_site(name=start, pos=(-reach, 0.0, 0.0))
    if is_welded:
        spec.add_equality(
            type=mujoco.mjtEq.mjEQ_WELD, objtype=mujoco.mjtObj.mjOBJ_SITE, name1=start, name2=hook
        )
        return
    rope = spec.add_tendon(name=start, limited=True, range=(0.0, thing.rope), width=0.008)
    rope.wrap_site(start)
    rope.wrap_site(hook)


def _read(thing: Thing) -> mujoco.MjSpec:
    """Return a thing's description, compiled once. Raise ConfigError for an impossible one."""
    text = str(thing.mjcf)
    is_file = not text.lstrip().startswith("<")
    try:
        spec = read_spec(Path(text)) if is_file else mujoco.MjSpec.from_string(text)
        _strip(spec, thing)
        model = spec.compile()
    except (ValueError, OSError) as error:
        reason = reason_of(error)
        hint = "name an MJCF that MuJoCo's own viewer shows"
        for words, better in _HINTS.items():
            if words in reason:
                hint = better
        what = text if is_file else "it"
        raise thing.error(f"MuJoCo does not read {what} ({reason}); {hint}") from None
    if (model.jnt_type == _FREE).sum() > 1:
        raise thing.error("it has several free joints; make a thing of every free body")
    reach = np.abs(np.append(model.geom_rbound, model.body_pos)).max()
    if not reach < _LARGEST:  # or is no number
        raise thing.error(
            f"it reaches {reach:.0f} m; if its mesh is in millimetres, give the mesh "
            'scale="0.001 0.001 0.001"'
        )
    for k, count in enumerate(model.mesh_facenum):
        if count > _MANY_TRIANGLES:
            note(
                f"thing {thing.name!r}: the mesh {model.mesh(k).name} has {count:,} triangles, and "
                "collides as its convex hull; a simpler mesh compiles and collides faster"
            )
    return spec


def _strip(spec: mujoco.MjSpec, thing: Thing) -> None:
    """Remove everything that a scene has itself, and name the joints."""
    planes = [geom for geom in spec.geoms if geom.type == mujoco.mjtGeom.mjGEOM_PLANE]
    mocap = [body for body in spec.bodies if body.mocap]
    if spec.actuators or mocap:
        note(f"thing {thing.name!r}: its actuators and mocap bodies do not move")
    for part in (*planes, *spec.actuators, *spec.sensors, *spec.keys, *spec.lights, *spec.cameras):
        spec.delete(part)
    for k, body in enumerate(spec.bodies):
        body.mocap = False
        body.name = body.name or f"body{k}"
        for joint in body.joints:
            joint.name = joint.name or body.name


class Pose(NamedTuple):
    """Position and orientation of a body or a site in N worlds."""

    pos: Tensor  # (N, 3) [m]
    rotation: Tensor  # (N, 3, 3) from the pose's frame to the world

    def point(self, offset: Tensor) -> Tensor:
        """Return the world position (N, 3) [m] of ``offset`` (3,) in the pose's frame."""
        return self.pos + self.rotation @ offset

    def then(self, pos: Tensor, rotation: Tensor) -> Pose:
        """Return the pose at ``pos`` (3,) with ``rotation`` (3, 3) or (N, 3, 3), in the
        pose's frame.
        """
        return Pose(self.point(pos), self.rotation @ rotation)


class Joint(NamedTuple):
    """Address of a thing's joint."""

    index: int
    type: int
    body: int
    qpos: slice  # within the things' positions
    qvel: slice  # within the things' velocities


class Things:
    """Names, addresses and kinematics of a scene's things. N worlds.

    Their Q positions and V velocities follow the robots' in qpos and qvel.
    """

    def __init__(self, model: mujoco.MjModel, things: Sequence[Thing]) -> None:
        """Find the joints, bodies and sites of ``things`` in a scene's model."""
        self._model = model
        prefixes = tuple(f"{thing.name}/" for thing in things)

        def parts(kind: Callable[[int], Any], count: int) -> dict[str, int]:
            """Return the ids of the things' parts of a kind by name."""
            names = [kind(k).name for k in range(count)]
            return {name: k for k, name in enumerate(names) if name.startswith(prefixes)}

        self.has_ropes = any(thing.hook for thing in things)
        self.num_qpos = 0
        self.num_qvel = 0
        self._joints: dict[str, Joint] = {}
        for name in parts(model.joint, model.njnt):
            joint = model.joint(name)
            first_qpos = self.num_qpos
            first_qvel = self.num_qvel
            self.num_qpos += len(joint.qpos0)
            self.num_qvel += len(joint.M0)  # one number for every degree of freedom
            self._joints[name] = Joint(
                joint.id,
                joint.type[0],
                joint.bodyid[0],
                slice(first_qpos, self.num_qpos),
                slice(first_qvel, self.num_qvel),
            )
        self._bodies = parts(model.body, model.nbody)
        self._sites = parts(model.site, model.nsite)
        self._tensors: dict[torch.device, dict[str, Tensor]] = {}

    def qpos(self, starts: Mapping[str, Tensor], num_worlds: int, device: torch.device) -> Tensor:
        """Return initial positions (N, Q): ``starts`` by joint, others as in the files.

        A free joint's start is x, y [m] and heading [rad], (N, 3), at the file's height. A hinge's
        or slide's start is (N,) [rad] or [m].
        """
        qpos = self._numbers(device)["qpos0"].repeat(num_worlds, 1)
        for name, values in starts.items():
            joint = self.joint(name)
            if joint.type == _FREE:
                pose = qpos[:, joint.qpos]
                pose[:, :2] = values[:, :2]
                pose[:, 3:] = quat_from_yaw(values[:, 2])
            else:
                qpos[:, joint.qpos] = values.view(num_worlds, -1)
        return qpos

    def joint(self, name: str) -> Joint:
        """Return a joint. Raise ConfigError for an unknown one."""
        if name not in self._joints:
            raise ConfigError(unknown("joint", name, self._joints))
        return self._joints[name]

    def pose(self, name: str, qpos: Tensor) -> Pose:
        """Return the pose of a body or a site, by the kinematics of MuJoCo, from the things'
        positions (N, Q).
        """
        if name in self._bodies:
            return self._of_body(self._bodies[name], qpos)
        if name not in self._sites:
            raise ConfigError(unknown("body or site", name, [*self._bodies, *self._sites]))
        site = self._sites[name]
        numbers = self._numbers(qpos.device)
        pose = self._of_body(self._model.site_bodyid[site], qpos)
        return pose.then(numbers["site_pos"][site], numbers["site_quat"][site])

    def _of_body(self, body: int, qpos: Tensor) -> Pose:
        numbers = self._numbers(qpos.device)
        joints = [joint for joint in self._joints.values() if joint.body == body]
        if joints and joints[0].type == _FREE:
            value = qpos[:, joints[0].qpos]
            return Pose(value[:, :3], rotation_matrix(value[:, 3:]))
        pos = numbers["body_pos"][body]
        rotation = numbers["body_quat"][body]
        parent = int(self._model.body_parentid[body])
        if parent == 0:
            pose = Pose(pos.expand(len(qpos), 3), rotation.expand(len(qpos), 3, 3))
        else:
            pose = self._of_body(parent, qpos).then(pos, rotation)
        for joint in joints:
            value = qpos[:, joint.qpos]
            axis = numbers["jnt_axis"][joint.index]
            anchor = numbers["jnt_pos"][joint.index]
            if joint.type == _BALL:
                turned = rotation_matrix(value)
            else:
                displacement = value - numbers["qpos0"][joint.qpos]
                if joint.type == _SLIDE:
                    pose = Pose(pose.pos + displacement * (pose.rotation @ axis), pose.rotation)
                    continue
                half = 0.5 * displacement
                turned = rotation_matrix(torch.cat((half.cos(), half.sin() * axis), dim=1))
            # The anchor stays.
            rotation = pose.rotation @ turned
            pose = Pose(pose.point(anchor) - rotation @ anchor, rotation)
        return pose

    def _numbers(self, device: torch.device) -> dict[str, Tensor]:
        """Return the model's constants as float32, quaternions as matrices."""
        if device not in self._tensors:
            numbers = {}
            for name in _CONSTANTS:
                values = torch.as_tensor(getattr(self._model, name), dtype=torch.float32)
                values = values.to(device)
                numbers[name] = rotation_matrix(values) if name.endswith("quat") else values
            numbers["qpos0"] = numbers["qpos0"][self._model.nq - self.num_qpos :]
            self._tensors[device] = numbers
        return self._tensors[device]
