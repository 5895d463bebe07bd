"""A maker's MJCF or URDF as a compiled model with a free base, without meshes for drawing alone."""

from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from mqe.config import ConfigError, reason_of
from mqe.world.robots.maker_files import read_spec
from mqe.world.robots.robot import MOMENTS

_LARGEST_MESH = 1 << 22  # [bytes] of one that collides: a hull of 80,000 faces takes seconds
_TURNS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
_PACKAGE = "package://"  # ROS's start of a path below a folder that holds packages
_LEAST_RADIUS = 0.01  # [m] radius of gyration of a link without extent


class MakerFile(NamedTuple):
    """A compiled robot file, with notes on the reader's changes."""

    path: Path
    model: mujoco.MjModel
    notes: tuple[str, ...]

    def refuse(self, reason: str) -> ConfigError:
        """Return an error about the file. ``reason`` ends with a way out."""
        return ConfigError(f"robot file {self.path}: {reason}")


def read_maker_file(path: Path) -> MakerFile:
    """Compile a robot file. Raise ConfigError for a file without exactly one robot."""
    try:
        spec = read_spec(path)
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None
    _find_packages(spec, path)
    notes = [*_remove_meshes(spec, path), *_mend_inertias(spec), *_remove_constraints(spec)]
    for part in (*spec.keys, *spec.sensors, *spec.lights, *spec.cameras):
        spec.delete(part)
    robots = [body for body in spec.worldbody.bodies if _has_joints(body)]
    if len(robots) != 1:
        names = ", ".join(body.name for body in robots) or "none"
        way_out = "name a file with one robot alone, after the expansion of its xacro macros"
        if robots and all(joint.type in _TURNS for body in robots for joint in body.joints):
            way_out = (
                "so the base is part of the world, as in MuJoCo's copy of a URDF, which lacks its "
                "mass; name the URDF, or put them into a body with an inertial"
            )
        raise ConfigError(
            f"robot file {path}: {len(robots)} bodies of its world have joints ({names}); {way_out}"
        )
    (base,) = robots
    if any(joint.type != mujoco.mjtJoint.mjJNT_FREE for joint in base.joints):
        raise ConfigError(
            f"robot file {path}: its base {base.name} has joints; give it a freejoint or none"
        )
    if not base.joints:
        base.add_freejoint(name="root")
    for part in (*spec.worldbody.geoms, *spec.worldbody.bodies):  # floor and scenery
        if part is not base:
            spec.delete(part)
    spec.compiler.fusestatic = True
    if path.suffix == ".urdf":  # links without an inertial are massless there
        spec.compiler.inertiafromgeom = 0
    try:
        return MakerFile(path, spec.compile(), tuple(notes))
    except ValueError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"robot file {path}: MuJoCo does not read it ({reason_of(error)}); name an MJCF or a plain "
        "URDF"
    )


def _has_joints(body: mujoco.MjsBody) -> bool:
    return bool(body.joints) or any(_has_joints(child) for child in body.bodies)


def _find_packages(spec: mujoco.MjSpec, path: Path) -> None:
    """Replace the ``package://`` address of each mesh that lies in a folder above the file."""
    for mesh in spec.meshes:
        if not mesh.file.startswith(_PACKAGE):
            continue
        address = mesh.file.removeprefix(_PACKAGE)
        for folder in path.resolve().parents:
            if (folder / address).is_file():
                mesh.file = str(folder / address)
                break


def _remove_meshes(spec: mujoco.MjSpec, path: Path) -> list[str]:
    """Remove meshes for drawing alone, and those without a file. Return notes on the latter."""
    links = []
    for geom in list(spec.geoms):
        if geom.type != mujoco.mjtGeom.mjGEOM_MESH:
            continue
        collides = geom.contype or geom.conaffinity
        file = path.parent / spec.meshdir / spec.mesh(geom.meshname).file
        if collides and file.is_file():
            if file.stat().st_size > _LARGEST_MESH:
                raise ConfigError(
                    f"robot file {path}: the mesh {geom.meshname} collides and has more than "
                    f"{_LARGEST_MESH >> 20} MiB; name a simpler one, or a box"
                )
            continue
        if collides:
            links.append(geom.parent.name)
        spec.delete(geom)
    meshes = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in meshes:
            spec.delete(mesh)
    if not links:
        return []
    return [f"meshes without a file, left out: {', '.join(dict.fromkeys(links))}"]


def _remove_constraints(spec: mujoco.MjSpec) -> list[str]:
    """Remove constraints, and actuators of other parts than joints. Return notes on these.

    Bodies with constraints would not weld to their parents.
    """
    joints = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
    actuators = [actuator for actuator in spec.actuators if actuator.trntype not in joints]
    removed = {
        "equality constraints": spec.equalities,
        "tendons": spec.tendons,
        "actuators without a joint": actuators,
    }
    notes = [f"{name}, left out: {len(parts)}" for name, parts in removed.items() if parts]
    for part in (*actuators, *spec.equalities, *spec.tendons, *spec.excludes, *spec.pairs):
        spec.delete(part)
    return notes


def _mend_inertias(spec: mujoco.MjSpec) -> list[str]:
    """Replace each impossible inertia by a ball's of equal trace. Return a note with the bodies."""
    names = []
    for body in spec.bodies:
        if not body.explicitinertial or body.mass <= 0.0:
            continue
        full = np.array(body.fullinertia)
        moments = np.array(body.inertia)
        if np.isfinite(full).all():
            moments = np.linalg.eigvalsh(full[MOMENTS])
        low, middle, high = np.sort(moments)
        if low > 0.0 and low + middle >= high:
            continue
        ball = max(moments.sum() / 3.0, body.mass * _LEAST_RADIUS**2)
        body.fullinertia = np.full(6, np.nan)
        body.inertia = np.full(3, ball)
        names.append(body.name)
    if not names:
        return []
    return [f"impossible moments of inertia, a ball's instead: {', '.join(names)}"]
