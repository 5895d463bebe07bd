"""The GPU simulator: MuJoCo Warp behind zero-copy torch views, one CUDA graph a control step.

Warp's kernels run on torch's current stream. On Warp's CPU device (a few worlds, for tests) nothing is captured.
"""

from __future__ import annotations

import copy
import logging
from typing import NamedTuple

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from mujoco_warp import OverflowType
from torch import Tensor

_LOG = logging.getLogger(__name__)

# What loses contacts or constraint rows. Solver iteration limits set bits of their own and lose nothing.
LOST = int(
    OverflowType.NEFC | OverflowType.NJMAX_NNZ | OverflowType.BROADPHASE | OverflowType.NARROWPHASE | OverflowType.CCD
    | OverflowType.CONTACT_MATCH | OverflowType.NVMAX | OverflowType.EPA_HORIZON
)  # fmt: skip
_UNKNOWN_FLAGS = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET) | int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)  # has neither
_GROWTH = 1.5  # factor by which an overflowing buffer grows


class Capacity(NamedTuple):
    """Sizes of the contact buffers."""

    contacts: int  # a world on average; worlds share the buffer
    rows: int  # constraint rows in any one world


def capacity(model: mujoco.MjModel) -> Capacity:
    """Derive buffer sizes from the number of robots and free objects in ``model``.

    Measured over random actions, trained policies and robots piled up (docs/benchmarks.md): a robot on its feet has 4
    contacts of 4 rows, on its back up to 16; an object 4 to 8 with the floor and a few with every robot.
    """
    robots = model.nu // 12
    others = int((model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).sum()) - robots
    return Capacity(contacts=14 + 14 * robots + 8 * others, rows=32 + 48 * robots + 24 * others)


class MujocoWarpSimulator:
    """N worlds of one model on one CUDA device, or on Warp's CPU device."""

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, device: torch.device, size: Capacity | None = None
    ) -> None:
        """Make ``num_envs`` worlds; ``size`` overrides the derived contact buffers."""
        wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # not a line for every kernel module
        wp.init()
        self.model = copy.copy(model)
        self.model.opt.disableflags &= ~_UNKNOWN_FLAGS
        self.num_envs = num_envs
        self.device = device
        self.synchronous = device.type == "cpu"
        self._fields: dict[str, Tensor] = {}
        self._warp_device = wp.device_from_torch(device)
        self._streams: dict[int, wp.Stream] = {}
        self.generation = 0  # counts the times that the views below were replaced
        self._make_model()
        self._make_data(size or capacity(model))

    def step(self, decimation: int) -> None:
        """Advance every world by ``decimation`` physics steps; lost contacts mark their world as ``failed``."""
        if self.synchronous:
            with wp.ScopedDevice(self._warp_device):
                self._substeps(decimation)
        elif torch.cuda.is_current_stream_capturing():
            stream = self._stream()
            with wp.ScopedStream(stream, sync_enter=False):
                wp.capture_begin(stream=stream, external=True)
                self._substeps(decimation)
                wp.capture_end(stream=stream)
        else:
            graph = self._graphs.get(decimation) or self._capture(decimation)
            wp.capture_launch(graph, stream=self._stream())
        lost = self._overflow & LOST
        self._lost |= lost
        torch.ne(lost, 0, out=self.failed)
        self._overflow.zero_()

    def write(self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor) -> None:
        """Put the worlds of ``mask`` (N,) into a new state, with no memory of the old one."""
        rows = mask.unsqueeze(1)
        self.qpos.copy_(torch.where(rows, qpos, self.qpos))
        self.qvel.copy_(torch.where(rows, qvel, self.qvel))
        self.mocap_pos.copy_(torch.where(rows.unsqueeze(2), mocap_pos, self.mocap_pos))
        self.ctrl.masked_fill_(rows, 0.0)
        self._warmstart.masked_fill_(rows, 0.0)
        self._time.masked_fill_(mask, 0.0)
        self.xfrc_applied.masked_fill_(rows.unsqueeze(2), 0.0)

    def set_field(self, name: str, values: Tensor) -> None:
        """Give a model field per-world values (N, ...)."""
        self._fields[name] = values.to(self.device, torch.float32)
        self._make_model()

    def lost_contacts(self) -> int:
        """Count the worlds that lost contacts since the last ``grow``; waits for the device."""
        return int((self._lost != 0).sum())

    def grow(self) -> str | None:
        """Enlarge buffers that overflowed since the last call; say what grew, or None. All views are replaced."""
        bits = 0
        for bit in OverflowType:
            if int(bit) & LOST and int(bit).bit_count() == 1 and bool((self._lost & int(bit)).any()):
                bits |= int(bit)
        if not bits:
            return None
        worlds = self.lost_contacts()
        old = self._size
        rows = bits & int(OverflowType.NEFC | OverflowType.NJMAX_NNZ)
        self._size = Capacity(
            contacts=old.contacts if bits == rows else int(old.contacts * _GROWTH),
            rows=int(old.rows * _GROWTH) if rows else old.rows,
        )
        state = self.state_dict()
        self._make_data(self._size)
        self.load_state_dict(state)
        names = "|".join(bit.name or "" for bit in OverflowType if int(bit) & bits and int(bit).bit_count() == 1)
        return f"contact buffers overflowed in {worlds} world(s) ({names}): {old} -> {self._size}"

    def data(self, env: int) -> mujoco.MjData:
        """World ``env`` as MjData on the host, forward kinematics done; per-world model fields are the shared ones."""
        data = mujoco.MjData(self.model)
        data.qpos[:], data.qvel[:] = self.qpos[env].cpu().numpy(), self.qvel[env].cpu().numpy()
        data.ctrl[:], data.mocap_pos[:] = self.ctrl[env].cpu().numpy(), self.mocap_pos[env].cpu().numpy()
        mujoco.mj_forward(self.model, data)
        return data

    def state_dict(self) -> dict[str, Tensor]:
        """The integration state of every world."""
        return {name: view.clone() for name, view in self._state().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict``."""
        for name, view in self._state().items():
            view.copy_(state[name])

    def close(self) -> None:
        """Drop graphs and buffers."""
        self._graphs.clear()
        del self._data, self._model

    def _state(self) -> dict[str, Tensor]:
        return {
            "qpos": self.qpos, "qvel": self.qvel, "ctrl": self.ctrl, "mocap_pos": self.mocap_pos,
            "xfrc_applied": self.xfrc_applied, "qacc_warmstart": self._warmstart, "time": self._time,
        }  # fmt: skip

    def _make_model(self) -> None:
        with wp.ScopedDevice(self._warp_device):
            self._model = mjw.put_model(self.model, batch_sizes=dict.fromkeys(self._fields, self.num_envs))
            self._model.opt.warn_overflow = 0  # the flags are read instead
            for name, values in self._fields.items():
                view = wp.to_torch(getattr(self._model, name))
                view.copy_(values.view_as(view))
        self._graphs: dict[int, wp.Graph] = {}

    def _make_data(self, size: Capacity) -> None:
        self._size = size
        self._graphs = {}
        self.generation += 1
        with wp.ScopedDevice(self._warp_device):
            self._data = mjw.make_data(self.model, self.num_envs, nconmax=size.contacts, njmax=size.rows)
        data = self._data
        self.qpos, self.qvel, self.ctrl = wp.to_torch(data.qpos), wp.to_torch(data.qvel), wp.to_torch(data.ctrl)
        self.mocap_pos, self.xfrc_applied = wp.to_torch(data.mocap_pos), wp.to_torch(data.xfrc_applied)
        self.sensordata, self._time = wp.to_torch(data.sensordata), wp.to_torch(data.time)
        self._warmstart, self._overflow = wp.to_torch(data.qacc_warmstart), wp.to_torch(data.overflow)
        self._lost = torch.zeros_like(self._overflow)
        self.failed = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def _substeps(self, decimation: int) -> None:
        for _ in range(decimation):
            mjw.step(self._model, self._data)

    def _stream(self) -> wp.Stream:
        current = torch.cuda.current_stream(self.device)
        if current.cuda_stream not in self._streams:
            self._streams[current.cuda_stream] = wp.stream_from_torch(current)
        return self._streams[current.cuda_stream]

    def _capture(self, decimation: int) -> wp.Graph:
        """Record one control step; the state is put back afterwards, since a first run outside loads the kernels."""
        state = self.state_dict()
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        stream = wp.stream_from_torch(side)  # one object: Warp knows a capture by it
        with torch.cuda.stream(side), wp.ScopedStream(stream, sync_enter=False):
            _LOG.info("compiling the physics kernels, once a machine (about 150 s, then cached) ...")
            self._substeps(1)
            with wp.ScopedCapture(stream=stream) as capture:
                self._substeps(decimation)
        torch.cuda.current_stream(self.device).wait_stream(side)
        assert capture.graph is not None
        self._graphs[decimation] = capture.graph
        self.load_state_dict(state)
        self._overflow.zero_()
        return capture.graph
