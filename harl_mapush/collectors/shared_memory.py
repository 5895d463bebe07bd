"""Memory shared by processes: blocks of transitions, the policy's weights, and counters.

T decisions a block, N environments of one collector, A agents, G critic views.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import zlib
from collections.abc import Sequence
from enum import IntEnum
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harl_mapush.learning.off_policy.replay_buffer import ReplayShape, Transition

_ALIGNMENT = 8  # bytes
_HEADER_BYTES = 24  # version, number of updates and checksum before the weights, int64 each


class SharedMemory:
    """A file without a name, which every process that inherits it maps into its memory.

    The system frees it with the last of these processes, however they end. It is not in
    ``/dev/shm``, which is small in containers.
    """

    def __init__(self, num_bytes: int) -> None:
        """Allocate ``num_bytes`` of zeros; raise OSError without enough memory."""
        self.num_bytes = num_bytes
        self._descriptor = _nameless_file()
        os.posix_fallocate(self._descriptor, 0, num_bytes)
        self.bytes = self._map()

    def close(self) -> None:
        """Close the file; the memory is freed with its last tensor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _map(self) -> Tensor:
        return torch.frombuffer(mmap.mmap(self._descriptor, self.num_bytes), dtype=torch.uint8)

    def __getstate__(self) -> tuple[Any, int]:
        return DupFd(self._descriptor), self.num_bytes

    def __setstate__(self, state: tuple[Any, int]) -> None:
        self._descriptor = state[0].detach()
        self.num_bytes = state[1]
        self.bytes = self._map()
        self.close()


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mapush")
    with tempfile.TemporaryFile() as file:  # on systems other than Linux
        return os.dup(file.fileno())


class Slot(NamedTuple):
    """The place of a tensor in shared memory."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int  # byte

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor as a view of ``memory`` (bytes)."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return memory[self.start : self.start + size].view(self.dtype).view(self.shape)

    def describe(self) -> str:
        """Return the tensor's name, shape and type: ``obs (8, 32, 2, 22) float32``."""
        return f"{self.name} {self.shape} {str(self.dtype).removeprefix('torch.')}"


def lay_out(wanted: Sequence[tuple[str, tuple[int, ...], torch.dtype]]) -> tuple[list[Slot], int]:
    """Place tensors one after the other; return their slots and the number of bytes in all."""
    laid = []
    end = 0
    for name, shape, dtype in wanted:
        laid.append(Slot(name, shape, dtype, end))
        size = dtype.itemsize
        for length in shape:
            size *= length
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return laid, end


class BlockLayout:
    """The layout of a block: T decisions of one collector's environments."""

    def __init__(self, num_steps: int, shape: ReplayShape) -> None:
        """Lay out blocks for a replay buffer whose rings have the sizes ``shape``."""
        rows = (num_steps, shape.num_envs)
        agents = shape.num_agents
        obs = (*rows, agents, shape.obs_size)
        state = (*rows, shape.num_views, shape.state_size)
        number = torch.float32
        truth = torch.bool
        wanted = {
            "obs": (obs, number),
            "state": (state, number),
            "actions": ((*rows, agents, shape.action_size), number),
            "active": ((*rows, agents), truth),
            "rewards": ((*rows, shape.num_views), number),
            "next_obs": (obs, number),
            "next_state": (state, number),
            "terminated": ((*rows, agents), truth),
            "done": (rows, truth),
            "valid": (rows, truth),
        }
        self.num_steps = num_steps
        self.num_transitions = num_steps * shape.num_envs
        self.slots, self.num_bytes = lay_out([(name, *wanted[name]) for name in Transition._fields])

    def write(self, block: Tensor, t: int, transition: Transition) -> None:
        """Copy decision ``t`` into a block (bytes); raise TypeError for a wrong shape or type."""
        for slot, value in zip(self.slots, transition, strict=True):
            if value.shape != slot.shape[1:] or value.dtype != slot.dtype:
                raise TypeError(
                    f"transition.{slot.name} is {tuple(value.shape)} {value.dtype} on "
                    f"{value.device}, but a decision of a block takes {slot.shape[1:]} {slot.dtype}"
                )
            slot.view(block)[t].copy_(value)

    def read(self, block: Tensor) -> list[Transition]:
        """Return the decisions of a block (bytes, on any device) as views of it."""
        tensors = [slot.view(block) for slot in self.slots]
        return [Transition(*(tensor[t] for tensor in tensors)) for t in range(self.num_steps)]


class SharedWeights:
    """The newest version of the actors' weights, from the learner to the collectors.

    By a checksum a reader notices that the learner was writing meanwhile, and reads again. No
    process ever holds a lock, which it would keep if it were killed.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        """Allocate memory for ``modules``, the actors without repetition."""
        states = [
            (f"{i}.{name}", value)
            for i, module in enumerate(modules)
            for name, value in named_tensors(module)
        ]
        wanted = [(name, tuple(value.shape), value.dtype) for name, value in states]
        self.slots, size = lay_out([("header", (3,), torch.int64), *wanted])
        self.memory = SharedMemory(size)

    def publish(self, modules: Sequence[nn.Module], version: int, num_updates: int) -> None:
        """Write a version; this waits for the learner's device."""
        values = [value for module in modules for _, value in named_tensors(module)]
        for slot, value in zip(self.slots[1:], values, strict=True):
            slot.view(self.memory.bytes).copy_(value)
        checksum = _checksum(self.memory.bytes, version, num_updates)
        header = self.slots[0].view(self.memory.bytes)
        header.copy_(torch.tensor([version, num_updates, checksum]))

    def read(self, modules: Sequence[nn.Module]) -> tuple[int, int]:
        """Load the newest version into ``modules``; return its number and its number of updates."""
        copied, version, num_updates = self.copy()
        load_weights(self.slots, copied, modules)
        return version, num_updates

    def copy(self) -> tuple[Tensor, int, int]:
        """Return a copy of the newest version (bytes), its number and its number of updates."""
        while True:
            copied = self.memory.bytes.clone()
            version, num_updates, checksum = self.slots[0].view(copied).tolist()
            if checksum == _checksum(copied, version, num_updates):
                return copied, version, num_updates


def load_weights(slots: Sequence[Slot], copied: Tensor, modules: Sequence[nn.Module]) -> None:
    """Load a copy of weights (bytes), laid out by ``slots``, into ``modules``."""
    values = [value for module in modules for _, value in named_tensors(module)]
    for slot, value in zip(slots[1:], values, strict=True):
        value.copy_(slot.view(copied))


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of a module by name, without copying them."""
    return list(module.state_dict().items())


def _checksum(memory: Tensor, version: int, num_updates: int) -> int:
    start = zlib.crc32(f"{version} {num_updates}".encode())
    return zlib.crc32(memory[_HEADER_BYTES:].numpy().data, start)


class Phase(IntEnum):
    """The activity of a collector."""

    STARTING = 0
    BUILDING = 1
    WAITING = 2
    COLLECTING = 3
    ENDED = 4
    PLACING = 5

    def describe(self) -> str:
        """Return the activity as words."""
        return {
            Phase.STARTING: "importing its libraries",
            Phase.BUILDING: "building its worlds",
            Phase.WAITING: "waiting for a free block",
            Phase.COLLECTING: "collecting",
            Phase.ENDED: "ended",
            Phase.PLACING: "waiting for a place in the cluster",
        }[self]


class CollectorMemory:
    """The memory that a collector shares with the learner's process: counters and blocks."""

    def __init__(self, layout: BlockLayout, num_blocks: int) -> None:
        """Allocate memory for ``num_blocks`` blocks."""
        self.layout = layout
        self.num_blocks = num_blocks
        self._slots, size = lay_out(
            [
                ("numbers", (len(Counters._fields),), torch.int64),
                ("versions", (num_blocks,), torch.int64),
            ]
            + [("block", (layout.num_bytes,), torch.uint8)] * num_blocks
        )
        self.memory = SharedMemory(size)
        self._open()
        self.versions.fill_(-1)

    def _open(self) -> None:
        numbers, self.versions, *self.blocks = (
            slot.view(self.memory.bytes) for slot in self._slots
        )
        self._numbers = numbers.numpy()  # NumPy reads and writes an entry in one operation

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("layout", "num_blocks", "_slots", "memory")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def set(self, **numbers: int) -> None:
        """Set counters by name."""
        for name, value in numbers.items():
            self._numbers[Counters._fields.index(name)] = value

    def add(self, **numbers: int) -> None:
        """Increase counters by name."""
        for name, value in numbers.items():
            self._numbers[Counters._fields.index(name)] += value

    def numbers(self) -> Counters:
        """Return all counters."""
        return Counters(*self._numbers.tolist())

    def oldest_version(self) -> int | None:
        """Return the oldest policy version of the blocks not stored yet, None without any."""
        versions = [version for version in self.versions.tolist() if version >= 0]
        return min(versions, default=None)


class Counters(NamedTuple):
    """Counters of a collector; all but ``phase``, ``step`` and ``version`` only increase."""

    phase: int = 0
    step: int = 0  # decisions of the current block
    version: int = 0  # of its policy
    num_decisions: int = 0
    num_sent: int = 0  # blocks
    waited_ns: int = 0  # time of waiting for free blocks
    must_end: int = 0  # 1 if the learner's process requested its end
