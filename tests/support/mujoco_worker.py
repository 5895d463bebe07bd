"""Plain MuJoCo in a process of its own: a stand-in for Isaac Gym behind the same protocol."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import torch

from mapush.extensions.isaacgym.engines import PYTHON
from mapush.extensions.isaacgym.neutral_model import GEOMS, add, force_pairs, trees
from mapush.extensions.isaacgym.remote_simulator import EngineSpec, ProcessSimulator
from mqe.registry import SIMULATORS, SimCfg, SimulatorEntry

SPEC = EngineSpec(
    name="mujoco_worker",
    file=Path(__file__).with_name("plain_mujoco.py"),
    dtype="float64",
    remembers=True,
)
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


def mjcf(model: mujoco.MjModel) -> str:
    """Return a model's physics as MJCF, without visual geoms and sensors."""
    option = model.opt
    root = ElementTree.Element("mujoco", model="mapush")
    add(root, "compiler", angle="radian", inertiafromgeom="false", autolimits="false")
    options = add(
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
    add(options, "flag", **flags)
    elements = {0: add(root, "worldbody")}
    for body in range(model.nbody):
        if body:
            elements[body] = _add_body(elements[int(model.body_parentid[body])], model, body)
        for geom in range(
            model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body]
        ):
            _add_geom(elements[body], model, geom)
    contact = add(root, "contact")
    for pair in range(model.npair):
        add(
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
    actuators = add(root, "actuator")
    for motor in range(model.nu):
        add(
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


def _add_body(parent: ElementTree.Element, model: mujoco.MjModel, body: int) -> ElementTree.Element:
    element = add(
        parent,
        "body",
        name=model.body(body).name,
        pos=model.body_pos[body],
        quat=model.body_quat[body],
    )
    if model.body_mocapid[body] >= 0:
        element.set("mocap", "true")
        return element
    add(
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
            add(element, "freejoint", name=joint.name)
        else:
            add(
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
    add(
        parent,
        "geom",
        name=_geom_name(model, geom),
        type=GEOMS[int(model.geom_type[geom])],
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


def _make(
    model: mujoco.MjModel, num_envs: int, cfg: SimCfg, device: torch.device
) -> ProcessSimulator:
    scene = {"mjcf": mjcf(model), "trees": trees(model), "forces": force_pairs(model)}
    return ProcessSimulator(SPEC, os.environ.get(PYTHON), scene, model, num_envs, device)


SIMULATORS.register(
    SPEC.name,
    SimulatorEntry(_make, runs_on_gpu=False),
)
