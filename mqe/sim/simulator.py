"""The contract between a simulator and the environment."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import mujoco
import torch
from torch import Tensor

from mqe.resumable import Resumable

GRAVITY_FIELD = "opt.gravity"  # (3,) [m/s^2] per world


class SimulatorError(RuntimeError):
    """A simulator cannot be started, or is lost: one line for the user. The run can resume from
    its last checkpoint.
    """


class SimulatorData(NamedTuple):
    """Live views into a simulator's memory under MuJoCo's names. Write in place.

    ``sensordata`` and ``failed`` are outputs, one physics step behind the state in all others. The
    floating point type is the simulator's own (float64 on CPU, float32 on CUDA).
    """

    qpos: Tensor  # (N, nq)
    qvel: Tensor  # (N, nv)
    ctrl: Tensor  # (N, nu)
    mocap_pos: Tensor  # (N, nmocap, 3)
    mocap_quat: Tensor  # (N, nmocap, 4)
    xfrc_applied: Tensor  # (N, nbody, 6) force [N] and torque [N m] on bodies, world frame
    sensordata: Tensor  # (N, nsensordata)
    # (N,) bool: the last step broke this world (an engine error, or a contact buffer overflowed).
    failed: Tensor


@dataclass
class GraphSupport:
    """A simulator's interface for steps inside a CUDA graph."""

    # How often the memory that a step reads and writes was replaced, which voids older graphs.
    generation: int = 0


class SimulatorFeatures(NamedTuple):
    """Optional abilities of a simulator."""

    # None: reading a value costs no wait, so that branching on one is free.
    graphs: GraphSupport | None = None
    # (N,) bool, for others to set: a step leaves these worlds as they are.
    resting: Tensor | None = None
    # Returns one world as ``snapshot`` does, with its own values of model fields.
    snapshot: Callable[[int], mujoco.MjData] | None = None
    # Enlarges buffers that overflowed since the last call, which replaces ``data``; returns a
    # message, or None if none overflowed.
    grow_buffers: Callable[[], str | None] | None = None


class Simulator(Protocol):
    """N worlds with one model. Growing buffers replace ``data``."""

    model: mujoco.MjModel  # the shared model, on the host
    num_envs: int
    device: torch.device
    data: SimulatorData

    @property
    def features(self) -> SimulatorFeatures:
        """The optional abilities, read once by the environment."""
        ...

    def step(self, decimation: int, ctrl: Tensor | None = None) -> None:
        """Advance every world by one control step of ``decimation`` physics steps.

        ``ctrl`` (decimation, N, nu) is written to ``data.ctrl``, one row before each physics step.
        Without it ``data.ctrl`` stays as it is.
        """
        ...

    def write(self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor) -> None:
        """Set a new state in the worlds ``mask`` (N,), without memory of the old state (warm start,
        forces).
        """
        ...

    def set_field(self, name: str, values: Tensor) -> None:
        """Set per-world values of a model field, by MuJoCo's name, (N, ...)."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a bit-exact continuation."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``."""
        ...

    def close(self) -> None:
        """Free threads and memory."""
        ...


class Writable(Resumable):
    """A simulator whose worlds are written, saved and restored through its tensors."""

    data: SimulatorData

    @abstractmethod
    def memory(self) -> dict[str, Tensor]:
        """Return live views (N, ...) of the simulator's memory besides ``data``, by name."""

    def write(self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor) -> None:
        """Set a new state in the worlds ``mask`` (N,), without memory of the old state."""
        data = self.data
        for view, values in ((data.qpos, qpos), (data.qvel, qvel), (data.mocap_pos, mocap_pos)):
            view.copy_(torch.where(_over(mask, view), values.to(view.dtype), view))
        for view in (data.ctrl, data.xfrc_applied, *self.memory().values()):
            view.masked_fill_(_over(mask, view), 0.0)

    def state_parts(self) -> dict[str, Tensor]:
        """Return live views of the saved state, by name."""
        names = ["qpos", "qvel", "ctrl", "mocap_pos", "xfrc_applied"]
        if self.data.mocap_quat.shape[1] > 1:  # a goal alone is never turned
            names.append("mocap_quat")
        return {name: getattr(self.data, name) for name in names} | self.memory()


def _over(mask: Tensor, values: Tensor) -> Tensor:
    """Return a mask (N,) with as many dimensions as values (N, ...)."""
    return mask.view(-1, *[1] * (values.dim() - 1))


def snapshot(sim: Simulator, env: int) -> mujoco.MjData:
    """Return world ``env`` as MjData on the host for rendering, forward kinematics done."""
    if sim.features.snapshot is not None:
        return sim.features.snapshot(env)
    data = mujoco.MjData(sim.model)
    for name in ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat", "xfrc_applied"):
        getattr(data, name)[:] = getattr(sim.data, name)[env].cpu().numpy()
    mujoco.mj_forward(sim.model, data)
    return data
