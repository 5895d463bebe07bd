"""A compiled model as text for other programs: MJCF for any MuJoCo, URDF for Isaac Gym.

Reading the text gives exactly the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np

_GEOMS = {
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name.upper()}")): name
    for name in ("plane", "sphere", "capsule", "cylinder", "box")
}
_INTEGRATORS = {
    int(getattr(mujoco.mjtIntegrator, f"mjINT_{name.upper()}")): name
    for name in ("Euler", "RK4", "implicit", "implicitfast")
}
_CONES = ("pyramidal", "elliptic")
_JACOBIANS = ("dense", "sparse", "auto")
# Flags that MuJoCo has had since 3.1: what a later version added has a default that does the same.
_OFF = {
    "midphase": mujoco.mjtDisableBit.mjDSBL_MIDPHASE,
    "autoreset": mujoco.mjtDisableBit.mjDSBL_AUTORESET,
}


def trees(model: mujoco.MjModel) -> list[str]:
    """Return the root bodies: the robots' trunks, then the object."""
    return [model.body(int(body)).name for body in np.unique(model.body_rootid[model.dof_bodyid])]


def force_pairs(model: mujoco.MjModel) -> list[list[int]]:
    """Return a pair of trees for each contact sensor: the first pushes the second."""
    names = trees(model)
    robots = [k for k, name in enumerate(names) if name.startswith("robot")]
    pushes = [[k, names.index("object")] for k in robots] if "object" in names else []
    return pushes + [list(pair) for pair in combinations(robots, 2)]


def mjcf(model: mujoco.MjModel) -> str:
    """Return a model's physics as MJCF, without visual geoms and sensors."""
    option = model.opt
    root = ElementTree.Element("mujoco", model="mapush")
    _add(root, "compiler", angle="radian", inertiafromgeom="false", autolimits="false")
    options = _add(
        root,
        "option",
        timestep=option.timestep,
        gravity=option.gravity,
        impratio=option.impratio,
        integrator=_INTEGRATORS[option.integrator],
        cone=_CONES[option.cone],
        jacobian=_JACOBIANS[option.jacobian],
        iterations=option.iterations,
        ls_iterations=option.ls_iterations,
        tolerance=option.tolerance,
        ls_tolerance=option.ls_tolerance,
    )
    flags = {name: "disable" for name, bit in _OFF.items() if option.disableflags & int(bit)}
    if option.disableflags & int(mujoco.mjtDisableBit.mjDSBL_MULTICCD):
        flags["multiccd"] = "disable"
    _add(options, "flag", **flags)
    elements = {0: _add(root, "worldbody")}
    for body in range(model.nbody):
        if body:
            elements[body] = _add_body(elements[int(model.body_parentid[body])], model, body)
        for geom in range(
            model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body]
        ):
            _add_geom(elements[body], model, geom)
    contact = _add(root, "contact")
    for pair in range(model.npair):
        _add(
            contact,
            "pair",
            name=model.pair(pair).name,
            geom1=_geom_name(model, int(model.pair_geom1[pair])),
            geom2=_geom_name(model, int(model.pair_geom2[pair])),
            condim=model.pair_dim[pair],
            friction=model.pair_friction[pair],
            solref=model.pair_solref[pair],
            solimp=model.pair_solimp[pair],
            solreffriction=model.pair_solreffriction[pair],
            margin=model.pair_margin[pair],
            gap=model.pair_gap[pair],
        )
    actuators = _add(root, "actuator")
    for motor in range(model.nu):
        _add(
            actuators,
            "general",
            name=model.actuator(motor).name,
            joint=model.joint(int(model.actuator_trnid[motor, 0])).name,
            biastype="affine",
            forcelimited="true",
            forcerange=model.actuator_forcerange[motor],
            gainprm=model.actuator_gainprm[motor, :1],
            biasprm=model.actuator_biasprm[motor, :3],
        )
    return ElementTree.tostring(root, encoding="unicode")


def urdf(model: mujoco.MjModel, tree: str) -> str:
    """Return one robot, or the object, as URDF: links, inertias, collision shapes and joints.

    Link and joint names are the model's names after the slash.
    """
    root = ElementTree.Element("robot", name=_label(tree))
    top = model.body(tree).id
    for body in range(model.nbody):
        if model.body_rootid[body] != top:
            continue
        link = _add(root, "link", name=_label(model.body(body).name))
        inertial = _add(link, "inertial")
        _add(inertial, "origin", xyz=model.body_ipos[body], rpy=(0.0, 0.0, 0.0))
        _add(inertial, "mass", value=model.body_mass[body])
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, model.body_iquat[body])
        turn = axes.reshape(3, 3)
        moments = turn @ np.diag(model.body_inertia[body]) @ turn.T  # along the link's axes
        _add(
            inertial,
            "inertia",
            ixx=moments[0, 0],
            iyy=moments[1, 1],
            izz=moments[2, 2],
            ixy=moments[0, 1],
            ixz=moments[0, 2],
            iyz=moments[1, 2],
        )
        for geom in range(
            model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body]
        ):
            if model.geom_contype[geom]:
                collision = _add(link, "collision")
                _add_origin(collision, model.geom_pos[geom], model.geom_quat[geom])
                _add_shape(
                    _add(collision, "geometry"),
                    _GEOMS[int(model.geom_type[geom])],
                    model.geom_size[geom],
                )
        if body == top:
            continue
        joint = model.joint(int(model.body_jntadr[body]))
        element = _add(root, "joint", name=_label(joint.name), type="revolute")
        _add_origin(element, model.body_pos[body], model.body_quat[body])
        _add(element, "parent", link=_label(model.body(int(model.body_parentid[body])).name))
        _add(element, "child", link=_label(model.body(body).name))
        _add(element, "axis", xyz=joint.axis)
        _add(
            element,
            "limit",
            lower=joint.range[0],
            upper=joint.range[1],
            effort=1000.0,
            velocity=1000.0,
        )
    return ElementTree.tostring(root, encoding="unicode")


def _add_body(parent: ElementTree.Element, model: mujoco.MjModel, body: int) -> ElementTree.Element:
    element = _add(
        parent,
        "body",
        name=model.body(body).name,
        pos=model.body_pos[body],
        quat=model.body_quat[body],
    )
    if model.body_mocapid[body] >= 0:
        element.set("mocap", "true")
        return element
    _add(
        element,
        "inertial",
        pos=model.body_ipos[body],
        quat=model.body_iquat[body],
        mass=model.body_mass[body],
        diaginertia=model.body_inertia[body],
    )
    for k in range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body]):
        joint = model.joint(k)
        if model.jnt_type[k] == mujoco.mjtJoint.mjJNT_FREE:
            _add(element, "freejoint", name=joint.name)
        else:
            _add(
                element,
                "joint",
                name=joint.name,
                type="hinge",
                axis=joint.axis,
                pos=joint.pos,
                limited="true",
                range=joint.range,
                solreflimit=model.jnt_solref[k],
                solimplimit=model.jnt_solimp[k],
                damping=model.dof_damping[joint.dofadr[0]],
                armature=model.dof_armature[joint.dofadr[0]],
                frictionloss=model.dof_frictionloss[joint.dofadr[0]],
            )
    return element


def _add_geom(parent: ElementTree.Element, model: mujoco.MjModel, geom: int) -> None:
    _add(
        parent,
        "geom",
        name=_geom_name(model, geom),
        type=_GEOMS[int(model.geom_type[geom])],
        size=model.geom_size[geom],
        pos=model.geom_pos[geom],
        quat=model.geom_quat[geom],
        contype=model.geom_contype[geom],
        conaffinity=model.geom_conaffinity[geom],
        priority=model.geom_priority[geom],
        condim=model.geom_condim[geom],
        friction=model.geom_friction[geom],
        solref=model.geom_solref[geom],
        solimp=model.geom_solimp[geom],
        margin=model.geom_margin[geom],
        gap=model.geom_gap[geom],
        solmix=model.geom_solmix[geom],
    )


def _geom_name(model: mujoco.MjModel, geom: int) -> str:
    return model.geom(geom).name or f"geom{geom}"


def _add_origin(parent: ElementTree.Element, pos: Iterable[float], quat: np.ndarray) -> None:
    w, x, y, z = quat
    roll = np.arctan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    pitch = np.arcsin(np.clip(2.0 * (w * y - z * x), -1.0, 1.0))
    yaw = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    _add(parent, "origin", xyz=pos, rpy=(roll, pitch, yaw))


def _add_shape(parent: ElementTree.Element, kind: str, size: np.ndarray) -> None:
    if kind == "box":
        _add(parent, "box", size=2.0 * size)
    elif kind == "sphere":
        _add(parent, "sphere", radius=size[0])
    else:  # a capsule's straight part, which Isaac Gym rounds off (replace_cylinder_with_capsule)
        _add(parent, "cylinder", radius=size[0], length=2.0 * size[1])


def _add(parent: ElementTree.Element, tag: str, **attributes: Any) -> ElementTree.Element:
    def text(value: Any) -> str:
        if isinstance(value, str):
            return value
        return " ".join(repr(number.item()) for number in np.atleast_1d(np.asarray(value)))

    return ElementTree.SubElement(
        parent, tag, {name: text(value) for name, value in attributes.items()}
    )


def _label(name: str) -> str:
    return name.rpartition("/")[2]
