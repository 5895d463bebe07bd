"""A compiled model as URDF for Isaac Gym.

Parsing the text gives bit-identical values.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np

from mqe.world.robots.robot import Inertial

GEOMS = {
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name.upper()}")): name
    for name in ("plane", "sphere", "capsule", "cylinder", "box")
}

_MOMENTS = ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")


def trees(model: mujoco.MjModel) -> list[str]:
    """Return the root bodies: the robots' trunks, then the object."""
    return [model.body(int(body)).name for body in np.unique(model.body_rootid[model.dof_bodyid])]


def force_pairs(model: mujoco.MjModel) -> list[list[int]]:
    """Return a pair of trees for each contact sensor: the first pushes the second."""
    names = trees(model)
    robots = [k for k, name in enumerate(names) if name.startswith("robot")]
    pushes = [[k, names.index("object")] for k in robots] if "object" in names else []
    return pushes + [list(pair) for pair in combinations(robots, 2)]


def urdf(model: mujoco.MjModel, tree: str) -> str:
    """Return one robot, or the object, as URDF: links, inertias, collision shapes and joints.

    Link and joint names are the model's names after the slash.
    """
    root = ElementTree.Element("robot", name=_label(tree))
    top = model.body(tree).id
    for body in range(model.nbody):
        if model.body_rootid[body] != top:
            continue
        link = add(root, "link", name=_label(model.body(body).name))
        inertial = add(link, "inertial")
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, model.body_iquat[body])
        mass = model.body_mass[body]
        com = model.body_ipos[body]
        add(inertial, "origin", xyz=com, rpy=(0.0, 0.0, 0.0))
        add(inertial, "mass", value=mass)
        _, _, moments = Inertial.of(mass, com, axes.reshape(3, 3), model.body_inertia[body])
        add(inertial, "inertia", **dict(zip(_MOMENTS, moments, strict=True)))
        for geom in range(
            model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body]
        ):
            if model.geom_contype[geom]:
                collision = add(link, "collision")
                _add_origin(collision, model.geom_pos[geom], model.geom_quat[geom])
                _add_shape(
                    add(collision, "geometry"),
                    GEOMS[int(model.geom_type[geom])],
                    model.geom_size[geom],
                )
        if body == top:
            continue
        joint = model.joint(int(model.body_jntadr[body]))
        element = add(root, "joint", name=_label(joint.name), type="revolute")
        _add_origin(element, model.body_pos[body], model.body_quat[body])
        add(element, "parent", link=_label(model.body(int(model.body_parentid[body])).name))
        add(element, "child", link=_label(model.body(body).name))
        add(element, "axis", xyz=joint.axis)
        add(
            element,
            "limit",
            lower=joint.range[0],
            upper=joint.range[1],
            effort=1000.0,
            velocity=1000.0,
        )
    return ElementTree.tostring(root, encoding="unicode")


def _add_origin(parent: ElementTree.Element, pos: Iterable[float], quat: np.ndarray) -> None:
    w, x, y, z = quat
    roll = np.arctan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    pitch = np.arcsin(np.clip(2.0 * (w * y - z * x), -1.0, 1.0))
    yaw = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    add(parent, "origin", xyz=pos, rpy=(roll, pitch, yaw))


def _add_shape(parent: ElementTree.Element, kind: str, size: np.ndarray) -> None:
    if kind == "box":
        add(parent, "box", size=2.0 * size)
    elif kind == "sphere":
        add(parent, "sphere", radius=size[0])
    else:  # a capsule's straight part, which Isaac Gym rounds off (replace_cylinder_with_capsule)
        add(parent, "cylinder", radius=size[0], length=2.0 * size[1])


def add(parent: ElementTree.Element, tag: str, **attributes: Any) -> ElementTree.Element:
    def text(value: Any) -> str:
        if isinstance(value, str):
            return value
        return " ".join(repr(number.item()) for number in np.atleast_1d(np.asarray(value)))

    return ElementTree.SubElement(
        parent, tag, {name: text(value) for name, value in attributes.items()}
    )


def _label(name: str) -> str:
    return name.rpartition("/")[2]
