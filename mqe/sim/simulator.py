"""The contract between a simulator and the environment."""

from __future__ import annotations

from typing import Protocol

import mujoco
import torch
from torch import Tensor


class SimulatorError(RuntimeError):
    """A simulator cannot be started, or is lost: one line for the user. The run can resume from
    its last checkpoint.
    """


class Simulator(Protocol):
    """N worlds of one model. All tensors are live views of the simulator's memory: write in place.

    ``qpos``, ``qvel``, ``ctrl``, ``mocap_pos``, ``mocap_quat`` and ``xfrc_applied`` are the state;
    ``sensordata`` is an output, one physics step behind it. The floating point type is the
    simulator's own (float64 on CPU, float32 on CUDA).
    """

    model: mujoco.MjModel  # the shared model, on the host
    num_envs: int
    device: torch.device
    synchronous: bool  # reading a value costs no wait, so that branching on one is free
    # Replay a control step as a graph of its own; who captures more than that turns it off.
    captures: bool
    # How often the memory that a step reads and writes was replaced: older recordings of it are
    # void.
    generation: int
    qpos: Tensor  # (N, nq)
    qvel: Tensor  # (N, nv)
    ctrl: Tensor  # (N, nu)
    mocap_pos: Tensor  # (N, nmocap, 3)
    mocap_quat: Tensor  # (N, nmocap, 4)
    xfrc_applied: Tensor  # (N, nbody, 6) force [N] and torque [N m] on bodies, world frame
    sensordata: Tensor  # (N, nsensordata)
    # (N,) bool: the last step broke this world (an engine error, or a contact buffer overflowed).
    failed: Tensor
    resting: Tensor  # (N,) bool, for others to set: a step may leave these worlds as they are

    @property
    def actuator_force(self) -> Tensor:
        """Torques (N, nu) [N m] of the last physics step, an output."""
        ...

    def step(self, decimation: int, ctrl: Tensor | None = None) -> None:
        """Advance every world by one control step of ``decimation`` physics steps.

        ``ctrl`` (decimation, N, nu) is written to ``self.ctrl``, a row before each physics step;
        without it ``self.ctrl`` stays as it is.
        """
        ...

    def write(self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor) -> None:
        """Put the worlds of ``mask`` (N,) into a new state, with no memory of the old one (warm
        start, forces).
        """
        ...

    def set_field(self, name: str, values: Tensor) -> None:
        """Set per-world values of a model field, by MuJoCo's name, (N, ...)."""
        ...

    def data(self, env: int) -> mujoco.MjData:
        """World ``env`` as MjData on the host, forward kinematics done, to render or to look at."""
        ...

    def grow_buffers(self) -> str | None:
        """Enlarge buffers that overflowed since the last call, which replaces all views; return a
        message, or None.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """The state that a bit-exact continuation needs."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``."""
        ...

    def close(self) -> None:
        """Free threads and memory."""
        ...
