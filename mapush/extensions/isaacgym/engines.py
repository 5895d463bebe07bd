"""Isaac Gym in a separate process: the registry's entry, and its scene."""

import os
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from mapush.extensions.isaacgym import neutral_model
from mapush.extensions.isaacgym.remote_simulator import EngineSpec, ProcessSimulator
from mqe.config import ConfigError
from mqe.host_memory import check_room
from mqe.registry import SIMULATORS, SimCfg, SimulatorEntry
from mqe.world.robots import NUM_JOINTS
from mqe.world.scene import FLOOR_BIT

_FULL = "the GPU's memory is full: lower env.num_envs, or end what else uses it"
ISAACGYM = EngineSpec(
    name="isaacgym",
    file=Path(__file__).parent / "worker" / "isaac_gym.py",
    dtype="float32",
    remembers=False,
    hints=(
        (
            "No module named 'isaacgym'",
            "MAPUSH_ISAAC_PYTHON must be the Python that Isaac Gym Preview 4 is installed in",
        ),
        ("fail to allocate memory", _FULL),
        ("out of memory", _FULL),
        ("libpython3", "its folder of libraries is missing from LD_LIBRARY_PATH"),
    ),
    overflows=("buffer overflow detected", "will miss interactions"),
)

# Pairs of shapes that PhysX keeps on the GPU. The reference takes 5 * 2^23, which fills an 8 GB
# card whatever the number of worlds is. PhysX's own default is the least; a robot of 17 shapes that
# lies on its side in a heap of others touches a few dozen.
LEAST_PAIRS = 1 << 20
MOST_PAIRS = 1 << 23
PAIRS_A_ROBOT = 128
PAIRS_OF_REST = 64
_FIELDS = (  # of the model, which worlds may have of their own
    "geom_friction",
    "pair_friction",
    "body_mass",
    "body_inertia",
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_forcerange",
)
# Environment variable: the path of Isaac Gym's interpreter. Files of settings name no program.
PYTHON = "MAPUSH_ISAAC_PYTHON"
# Reports of cards with 8 GB: 1 to 2 GB for 2^23 pairs, and about 2.5 MB for a world
_PAIR_BYTES = 200
_WORLD_BYTES = 2.5e6


def contact_pairs(num_envs: int, num_robots: int) -> int:
    """Return Isaac Gym's ``max_gpu_contact_pairs``, a power of two."""
    num_pairs = num_envs * (PAIRS_A_ROBOT * num_robots + PAIRS_OF_REST)
    return min(MOST_PAIRS, max(LEAST_PAIRS, 1 << (num_pairs - 1).bit_length()))


def isaac_scene(model: mujoco.MjModel, num_envs: int, device: torch.device) -> dict[str, Any]:
    """Return the scene for Isaac Gym's worker: descriptions, names in our order, motors, materials.

    Raises ConfigError for obstacles, things, and a floor with torsional or rolling friction.
    """
    if model.geom_condim[model.geom("floor").id] > 3:
        raise ConfigError(
            "env.foot_friction: Isaac Gym has only sliding friction; say one number, or take "
            "another --sim"
        )
    if (model.geom_contype == FLOOR_BIT).sum() > 1:
        raise ConfigError("env.ground: Isaac Gym has no kerbs; say flat, or take another --sim")
    if model.geom_priority.max() > 1:
        raise ConfigError(
            "sim.name: Isaac Gym has neither obstacles nor things; take another --sim"
        )
    names = neutral_model.trees(model)
    robots = [name for name in names if name.startswith("robot")]
    object_body = model.body("object").id if "object" in names else -1
    joints = [
        model.joint(int(joint)).name.rpartition("/")[2] for joint in model.actuator_trnid[:, 0]
    ]
    walls = [
        k
        for k in range(model.ngeom)
        if model.geom_bodyid[k] == 0 and model.geom_type[k] == mujoco.mjtGeom.mjGEOM_BOX
    ]
    return {
        "urdfs": {name: neutral_model.urdf(model, name) for name in names},
        "robots": robots,
        "joints": np.array(joints).reshape(-1, NUM_JOINTS).tolist(),
        "trunk_bodies": [model.body(name).id for name in robots],
        "object_body": object_body,
        "object_geoms": [
            k
            for k in range(model.ngeom)
            if model.geom_contype[k] and model.geom_bodyid[k] == object_body
        ],
        "floor_geom": model.geom("floor").id,
        "fields": {name: getattr(model, name).tolist() for name in _FIELDS},
        "walls": [
            [*model.geom_pos[k].tolist(), *(2.0 * model.geom_size[k]).tolist()] for k in walls
        ],
        "forces": neutral_model.force_pairs(model),
        "trees": names,
        "timestep": float(model.opt.timestep),
        "gravity": model.opt.gravity.tolist(),
        "contact_pairs": contact_pairs(num_envs, len(robots)),
        "device": str(device),
    }


def _make(
    model: mujoco.MjModel, num_envs: int, cfg: SimCfg, device: torch.device
) -> ProcessSimulator:
    if (model.actuator_gaintype == mujoco.mjtGain.mjGAIN_DCMOTOR).any():
        raise ConfigError(
            f"env.model: sim.name={ISAACGYM.name} has no motors with a torque-speed curve; say "
            "--set env.model=reference, or --sim mujoco"
        )
    scene = isaac_scene(model, num_envs, device)
    num_bytes = scene["contact_pairs"] * _PAIR_BYTES + num_envs * _WORLD_BYTES
    check_room(num_bytes, device, "env.num_envs", num_envs)
    return ProcessSimulator(ISAACGYM, os.environ[PYTHON], scene, model, num_envs, device)


def _check(cfg: SimCfg, device: torch.device) -> None:
    if PYTHON not in os.environ:
        raise ConfigError(
            f"sim.name={cfg.name}: set the environment variable {PYTHON} to the path of Isaac "
            "Gym's interpreter, for example /opt/py38/bin/python"
        )
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            f"sim.name={cfg.name}: a simulator in its own process needs Linux; say --sim mujoco"
        )


SIMULATORS.register(ISAACGYM.name, SimulatorEntry(_make, _check))
