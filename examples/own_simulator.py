"""A simulator of your own: plain MuJoCo, one world after the other, with no optional feature.

mapush train --import own_simulator --sim one_by_one --preset smoke --num_envs 8
"""

import copy

import mujoco
import torch
from torch import Tensor

import mapush
from mqe.registry import SimCfg, SimulatorEntry
from mqe.sim.simulator import SimulatorData, SimulatorFeatures, Writable


class OneByOne(Writable):
    """N worlds in a Python loop."""

    features = SimulatorFeatures()

    def __init__(self, model: mujoco.MjModel, num_envs: int) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(num_envs, *shape, dtype=torch.float64)

        self.model = model
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.data = SimulatorData(
            qpos=torch.as_tensor(model.qpos0).repeat(num_envs, 1),
            qvel=zeros(model.nv),
            ctrl=zeros(model.nu),
            mocap_pos=zeros(model.nmocap, 3),
            mocap_quat=torch.eye(4, dtype=torch.float64)[0].repeat(num_envs, model.nmocap, 1),
            xfrc_applied=zeros(model.nbody, 6),
            sensordata=zeros(model.nsensordata),
            failed=torch.zeros(num_envs, dtype=torch.bool),
        )
        self._warmstart = zeros(model.nv)
        self._models = [copy.copy(model) for _ in range(num_envs)]  # with fields of their own
        self._worlds = [mujoco.MjData(model) for _ in range(num_envs)]

    def step(self, decimation: int, ctrl: Tensor | None = None) -> None:
        """Take ``decimation`` physics steps, a row of ``ctrl`` each, in every world."""
        for i, world in enumerate(self._worlds):
            for name, values in self.state_parts().items():
                getattr(world, name)[:] = values[i].numpy()
            for k in range(decimation):
                if ctrl is not None:
                    world.ctrl[:] = ctrl[k, i].numpy()
                mujoco.mj_step(self._models[i], world)
            for name, values in {**self.state_parts(), "sensordata": self.data.sensordata}.items():
                values[i] = torch.from_numpy(getattr(world, name))
        self.data.failed.copy_(~self.data.qvel.isfinite().all(dim=1))

    def memory(self) -> dict[str, Tensor]:
        """Return the solver's start."""
        return {"qacc_warmstart": self._warmstart}

    def set_field(self, name: str, values: Tensor) -> None:
        """Set a field in each world's model, and MuJoCo's derived fields."""
        for model, value in zip(self._models, values, strict=True):
            getattr(model, name)[:] = value.numpy()
            mujoco.mj_setConst(model, mujoco.MjData(model))

    def close(self) -> None:
        """Drop the worlds."""
        self._worlds.clear()


def make(model: mujoco.MjModel, num_envs: int, cfg: SimCfg, device: torch.device) -> OneByOne:
    """Build the worlds."""
    return OneByOne(model, num_envs)


mapush.register_simulator("one_by_one", SimulatorEntry(make, runs_on_gpu=False))
