"""The GPU simulator: MuJoCo Warp behind zero-copy torch views.

Warp's kernels run on torch's current stream, also inside a CUDA graph that torch captures.
"""

import copy
import math
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from mujoco.batch import Batch
from mujoco_warp import OverflowType
from torch import Tensor

from mqe.sim.simulator import (
    GRAVITY_FIELD,
    GraphSupport,
    SimulatorData,
    SimulatorFeatures,
    Writable,
)
from mqe.sim.warp_kernels import load_in_parallel, recorded_launches

wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # not a line for every kernel module

# What loses contacts or constraint rows. Solver iteration limits set bits of their own and lose
# nothing.
LOST = int(
    OverflowType.NEFC
    | OverflowType.NJMAX_NNZ
    | OverflowType.BROADPHASE
    | OverflowType.NARROWPHASE
    | OverflowType.CCD
    | OverflowType.CONTACT_MATCH
    | OverflowType.NVMAX
    | OverflowType.EPA_HORIZON
)
# A larger buffer mends these overflows. Others mark their world only.
_ROWS = int(OverflowType.NEFC | OverflowType.NJMAX_NNZ)
_CONTACTS = int(OverflowType.BROADPHASE | OverflowType.NARROWPHASE | OverflowType.CCD)
# Flags without a meaning in Warp
_UNKNOWN_FLAGS = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET) | int(
    mujoco.mjtDisableBit.mjDSBL_MIDPHASE
)
_NO_SENSORS = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
_NO_PASSIVE_FORCES = int(mujoco.mjtDisableBit.mjDSBL_SPRING) | int(
    mujoco.mjtDisableBit.mjDSBL_DAMPER
)
_PASSIVE_FIELDS = (
    "jnt_stiffness",
    "jnt_stiffnesspoly",
    "dof_damping",
    "dof_dampingpoly",
    "tendon_stiffness",
    "tendon_stiffnesspoly",
    "tendon_damping",
    "tendon_dampingpoly",
    "actuator_damping",
    "actuator_dampingpoly",
    "body_gravcomp",
    "geom_adhesion",
    "pair_adhesion",
)
# What MuJoCo derives from masses and inertias that a step reads.
_DERIVED = ("body_subtreemass", "body_invweight0", "dof_invweight0")
_GROWTH = 1.5  # factor by which an overflowing buffer grows
# Of the solver. Worlds iterate together until the last one is done, and of thousands some always
# take all that are allowed (docs/results/speed.md).
_MOST_ITERATIONS = 8


class Capacity(NamedTuple):
    """Sizes of the contact buffers."""

    contacts: int  # a world on average; worlds share the buffer
    rows: int  # constraint rows in any one world


def known_to_warp(model: mujoco.MjModel) -> mujoco.MjModel:
    """Copy a model without options unknown to MuJoCo Warp.

    The options are not needed: Warp's sparse solver takes fewer iterations.
    """
    model = copy.copy(model)
    model.opt.disableflags &= ~_UNKNOWN_FLAGS
    # Two boxes then get MuJoCo's contacts; nothing else reads this flag. Warp's convex collider
    # makes four contacts of faces that are almost parallel where MuJoCo has one.
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD)
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_AUTO
    model.opt.iterations = min(model.opt.iterations, _MOST_ITERATIONS)
    return model


def capacity(model: mujoco.MjModel) -> Capacity:
    """Derive buffer sizes from the number of robots and free objects in ``model``.

    Measured over random actions, trained policies and robots piled up
    (docs/results/speed.md). A robot on its feet has 4 contacts of 4 rows, on its back up to
    16. An object has 4 to 8 with the floor and a few with every robot. Two robots dropped on a
    crossing of kerbs use a third of the contacts and 0.7 of the rows.
    """
    # Trees that have motors.
    robots = len(set(model.dof_treeid[model.jnt_dofadr[model.actuator_trnid[:, 0]]]))
    others = model.ntree - robots
    friction_rows = int((model.dof_frictionloss > 0.0).sum())  # one each, always
    # Welds, ropes and other constraints of things
    constraint_rows = 6 * model.neq + model.ntendon
    rows = 64 + 36 * robots + 24 * others + friction_rows + constraint_rows
    contacts = 14 + 14 * robots + 8 * others
    if model.nmocap > 1:  # obstacles: a box against a wall, and robots beside it
        rows += 12 * (robots + others)
        contacts += 4 * (robots + others)
    return Capacity(contacts, rows)


class MujocoWarpSimulator(Writable):
    """N worlds of one model on one CUDA device, or on Warp's CPU device."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        device: torch.device,
        size: Capacity | None = None,
    ) -> None:
        """Make ``num_envs`` worlds. ``size`` overrides the derived contact buffers."""
        wp.init()
        self.model = model
        self._known = known_to_warp(model)
        self.num_envs = num_envs
        self.device = device
        self._graphs = None if device.type == "cpu" else GraphSupport()
        self._fields: dict[str, Tensor] = {}
        self._warp_device = wp.device_from_torch(device)
        self._is_loaded = False  # the kernels
        self._make_model()
        self._make_data(size or capacity(model))

    @property
    def features(self) -> SimulatorFeatures:
        """Optional abilities: graphs on a GPU, and growing contact buffers."""
        return SimulatorFeatures(graphs=self._graphs, grow_buffers=self.grow_buffers)

    def step(self, decimation: int, ctrl: Tensor | None = None) -> None:
        """Advance every world by ``decimation`` physics steps. Lost contacts mark their world
        ``failed``.
        """
        if self._graphs is not None and torch.cuda.is_current_stream_capturing():
            with self._place(), wp.ScopedCapture(stream=self._stream(), external=True):
                self._substeps(decimation, ctrl)
        else:
            with self._place():
                self._load_kernels()
                self._substeps(decimation, ctrl)
        lost = self._overflow & LOST
        self._lost |= lost
        torch.ne(lost, 0, out=self.data.failed)
        self._overflow.zero_()
        torch.maximum(self._most_rows, self._nefc, out=self._most_rows)
        torch.maximum(
            self._most_contacts,
            torch.maximum(self._nacon, self._ncollision),
            out=self._most_contacts,
        )

    def write(self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor) -> None:
        """Set a new state in the worlds ``mask`` (N,), without memory of the old state.

        The first call loads a step's kernels, so compilation is no part of a training's first
        iteration.
        """
        if not self._is_loaded:
            with self._place():
                self._load_kernels()

        super().write(mask, qpos, qvel, mocap_pos)

    def memory(self) -> dict[str, Tensor]:
        """Return the solver's start and the time."""
        return {"qacc_warmstart": self._warmstart, "time": self._time}

    def set_field(self, name: str, values: Tensor) -> None:
        """Set a model field per world (N, ...), and MuJoCo's derived fields. Waits for the
        device.
        """
        self._fields[name] = values.to(self.device, torch.float32)
        if name in mujoco.MjModel._setconst_inputs:
            self._fields |= self._derived()
        self._make_model()

    def _derived(self) -> dict[str, Tensor]:
        """Return per-world values for MuJoCo's derived fields, given set ones such as masses."""
        given = [name for name in self._fields if name in mujoco.MjModel._setconst_inputs]
        # Derives on the host, where every field is at hand.
        batch = Batch(self._known, self.num_envs)
        for name in given:
            field = batch.expand(name)
            field[:] = self._fields[name].cpu().numpy().reshape(field.shape)
        batch.set_const()
        derived = {name: batch.expanded(name) for name in _DERIVED}
        return {
            name: torch.from_numpy(values.copy()).to(self.device, torch.float32)
            for name, values in derived.items()
            if values is not None
        }

    def usage(self) -> Capacity:
        """Return the peak use in any control step since the last ``grow_buffers``. Waits for the
        device.

        Lost contacts count as well, so growing once is enough.
        """
        contacts, rows = torch.stack([self._most_contacts.max(), self._most_rows.max()]).tolist()
        return Capacity(math.ceil(contacts / self.num_envs), rows)

    def lost_contacts(self) -> int:
        """Count the worlds with lost contacts since the last ``grow_buffers``. Waits for the
        device.
        """
        return int((self._lost != 0).sum())

    def grow_buffers(self) -> str | None:
        """Enlarge the contact buffers after an overflow since the last call.

        Returns a message about lost contacts, or None. Growth replaces the tensor views in
        ``data``.
        """
        bits = self._lost_bits()
        worlds = self.lost_contacts()
        old = self.size
        used = self.usage()
        for record in (self._lost, self._most_rows, self._most_contacts):
            record.zero_()
        if not bits & (_ROWS | _CONTACTS):
            lost = (
                f"{worlds} of {self.num_envs} worlds lost contacts ({_names(bits)}), which no "
                "larger buffer mends"
            )
            return lost if bits else None
        size = Capacity(
            contacts=int(max(old.contacts, used.contacts) * _GROWTH)
            if bits & _CONTACTS
            else old.contacts,
            rows=int(max(old.rows, used.rows) * _GROWTH) if bits & _ROWS else old.rows,
        )
        self._resize(size)
        return (
            f"contact buffers overflowed in {worlds} of {self.num_envs} worlds ({_names(bits)}); "
            f"grown from {old.contacts} contacts and {old.rows} rows a world to {size.contacts} "
            f"and {size.rows}"
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Every world's integration state, and the contact buffers' sizes."""
        return super().state_dict() | {"size": torch.tensor(self.size)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``. Larger contact buffers replace the tensor views in ``data``."""
        contacts, rows = state["size"].tolist()
        size = Capacity(max(contacts, self.size.contacts), max(rows, self.size.rows))
        if size != self.size:
            self._resize(size)
        super().load_state_dict(state)

    def close(self) -> None:
        """Drop the buffers. A second call does nothing. Waits for the device."""
        self._wait()
        with suppress(AttributeError):
            del self._data, self._model

    def _resize(self, size: Capacity) -> None:
        """Replace the contact buffers and the tensor views in ``data``. The state stays."""
        state = self.state_dict()
        self._make_data(size)
        self.load_state_dict(state)

    def _lost_bits(self) -> int:
        """All worlds' bits for lost contacts since the last ``grow_buffers``. Waits for the device,
        once.
        """
        bits = [1 << k for k in range(LOST.bit_length()) if LOST >> k & 1]
        is_lost = torch.stack([(self._lost & bit).any() for bit in bits]).tolist()
        return sum(bit for bit, lost in zip(bits, is_lost, strict=True) if lost)

    def _make_model(self) -> None:
        self._renew()
        with self._place():
            fields = dict(self._fields)
            gravity = fields.pop(GRAVITY_FIELD, None)
            self._model = mjw.put_model(
                self._known, batch_sizes=dict.fromkeys(fields, self.num_envs)
            )
            self._model.opt.warn_overflow = 0  # the flags are read instead
            for name, values in fields.items():
                view = wp.to_torch(getattr(self._model, name))
                view.copy_(values.view_as(view))
            if gravity is not None:
                # ``put_model`` makes no batches of options.
                self._model.opt.gravity = wp.from_torch(gravity, wp.vec3)

    def _make_data(self, size: Capacity) -> None:
        self._renew()
        self.size = size
        with self._place():
            self._data = mjw.make_data(
                self._known, self.num_envs, nconmax=size.contacts, njmax=size.rows
            )
        data = self._data
        self.data = SimulatorData(
            qpos=wp.to_torch(data.qpos),
            qvel=wp.to_torch(data.qvel),
            ctrl=wp.to_torch(data.ctrl),
            mocap_pos=wp.to_torch(data.mocap_pos),
            mocap_quat=wp.to_torch(data.mocap_quat),
            xfrc_applied=wp.to_torch(data.xfrc_applied),
            sensordata=wp.to_torch(data.sensordata),
            failed=torch.zeros(self.num_envs, dtype=torch.bool, device=self.device),
        )
        self._time = wp.to_torch(data.time)
        self._warmstart = wp.to_torch(data.qacc_warmstart)
        self._overflow = wp.to_torch(data.overflow)
        self._nacon = wp.to_torch(data.nacon)
        self._ncollision = wp.to_torch(data.ncollision)
        self._nefc = wp.to_torch(data.nefc)
        self._lost = torch.zeros_like(self._overflow)
        self._most_rows = torch.zeros_like(self._nefc)
        self._most_contacts = torch.zeros_like(self._nacon)

    def _substeps(self, decimation: int, ctrl: Tensor | None = None) -> None:
        """Take physics steps as ``mjw.step`` does, but skip work without effect.

        Skipped are passive forces in a model without any, and, in a model without a history of
        sensors, sensors in all but the last step.
        """
        opt = self._model.opt
        assert opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST  # as in every scene
        flags = opt.disableflags
        idle = 0 if _has_passive_forces(self.model, self._fields) else _NO_PASSIVE_FORCES
        unseen = 0 if self.model.nhistory else _NO_SENSORS
        for left in reversed(range(decimation)):
            if ctrl is not None:
                self.data.ctrl.copy_(ctrl[decimation - 1 - left])
            opt.disableflags = flags | idle | (unseen if left else 0)
            try:
                mjw.forward(self._model, self._data)
            finally:
                # Without damping an integrator would leave out the actuators' damping too.
                opt.disableflags = flags
            mjw.implicit(self._model, self._data)

    def _load_kernels(self) -> None:
        """Load a step's kernels in parallel, unless already loaded. The state stays."""
        if self._is_loaded:
            return
        state = self.state_dict()
        with recorded_launches() as launched:
            self._substeps(1)
        self.load_state_dict(state)
        load_in_parallel(launched, self._warp_device)
        self._is_loaded = True

    def _renew(self) -> None:
        """Announce the replacement of memory, once the device has finished with that memory."""
        self._wait()
        if self._graphs is not None:
            self._graphs.generation += 1

    def _wait(self) -> None:
        """Wait for the device: Warp frees memory without regard to torch's streams."""
        if self._graphs is not None:
            torch.cuda.synchronize(self.device)

    def _place(self) -> AbstractContextManager[Any]:
        """Work on torch's current stream for this device."""
        if self._graphs is None:
            return wp.ScopedDevice(self._warp_device)
        return wp.ScopedStream(self._stream(), sync_enter=False)

    def _stream(self) -> wp.Stream:
        return _warps_name(torch.cuda.current_stream(self.device))


_STREAMS: dict[tuple[int, int], wp.Stream] = {}  # by device and handle


def _warps_name(stream: torch.cuda.Stream) -> wp.Stream:
    """Return Warp's only object for a torch stream. With several objects Warp forgets the
    stream.
    """
    key = (stream.device.index, stream.cuda_stream)
    if key not in _STREAMS:
        _STREAMS[key] = wp.stream_from_torch(stream)
    return _STREAMS[key]


def _has_passive_forces(model: mujoco.MjModel, fields: Collection[str]) -> bool:
    """Return whether ``model`` has passive forces, or may have with per-world ``fields``."""
    option = model.opt
    in_a_fluid = option.density > 0.0 or option.viscosity > 0.0 or bool(option.wind.any())
    has_passive = any(
        bool(getattr(model, name).any()) or name in fields for name in _PASSIVE_FIELDS
    )
    return has_passive or in_a_fluid or model.nflex > 0


def _names(bits: int) -> str:
    """Return MuJoCo Warp's names for the set bits."""
    return "|".join(
        bit.name or "" for bit in OverflowType if bits & int(bit) and int(bit).bit_count() == 1
    )
