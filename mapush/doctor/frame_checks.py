"""A check of a simulator's poses and velocities against MuJoCo's meaning."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import torch

from mqe.env.environment import MultiAgentEnv
from mqe.world.state import POSE, ROBOT_QPOS, ROBOT_QVEL

_SPEED_TOLERANCE = 0.1  # [m/s] the legs accelerate the trunk a little
_RATE_TOLERANCE = 0.15  # [rad/s]
_TURNED = (0.8, 0.36, 0.48, 0.0)  # quaternion about an axis other than the body's own
_LINEAR = (0.6, -0.4, 0.2)  # [m/s]
_ANGULAR = (1.0, 2.0, 3.0)  # [rad/s] in the body frame


def find_wrong_motion(env: MultiAgentEnv) -> str | None:
    """Return a message if a body does not move by its velocity, else None.

    Robots and object fly and turn in the air for one physics step. The worlds are changed. Possible
    causes: order of quaternions, frame of angular velocities, reference point of linear velocities.
    """
    sim = env.sim
    scene = env.scene
    bodies = [(ROBOT_QPOS * k, ROBOT_QVEL * k) for k in range(scene.num_robots)]
    bodies += [(scene.robot_qpos, scene.robot_qvel)] * (scene.object is not None)
    qpos = sim.data.qpos.clone()
    qvel = torch.zeros_like(sim.data.qvel)
    for k, (at, vel_at) in enumerate(bodies):
        pose = (2.0 * k, 0.0, 5.0, *_TURNED)
        qpos[:, at : at + POSE] = torch.tensor(pose, dtype=qpos.dtype, device=qpos.device)
        velocity = torch.tensor((*_LINEAR, *_ANGULAR), dtype=qvel.dtype, device=qvel.device)
        qvel[:, vel_at : vel_at + len(velocity)] = velocity
    sim.write(torch.ones_like(sim.data.failed), qpos, qvel, sim.data.mocap_pos.clone())
    joints = [qpos[:, at + POSE : at + ROBOT_QPOS] for at, _ in bodies[: scene.num_robots]]
    sim.data.ctrl.copy_(torch.cat(joints, dim=1))
    sim.step(1)
    dt = scene.model.opt.timestep
    before = qpos[0].double().cpu().numpy()
    after = sim.data.qpos[0].double().cpu().numpy()
    for k, (at, _) in enumerate(bodies):
        name = f"robot {k}" if k < scene.num_robots else "object"
        speed = (after[at : at + 3] - before[at : at + 3]) / dt
        rate = np.zeros(3)
        if abs(speed - _LINEAR)[:2].max() > _SPEED_TOLERANCE:  # gravity changes the third
            return f"the {name} flies at {_numbers(speed)} m/s, not {_numbers(_LINEAR)}"
        mujoco.mju_subQuat(rate, after[at + 3 : at + POSE], np.array(_TURNED))
        if abs(rate / dt - _ANGULAR).max() > _RATE_TOLERANCE:
            return f"the {name} turns at {_numbers(rate / dt)} rad/s, not {_numbers(_ANGULAR)}"
    return None


def _numbers(vector: Any) -> str:
    return "(" + ", ".join(f"{float(value):.2f}" for value in vector) + ")"
