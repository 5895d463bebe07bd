"""CUDA graphs on a CPU: a recording lists torch calls, and every replay repeats them on the
original tensors.

As on a GPU, recording changes nothing: it restores all written tensors. A host read raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mqe.env.environment import MultiAgentEnv
from mqe.sim.simulator import GraphSupport, snapshot

_recording: list[RecordedGraph] = []  # at most one


class RecordedGraph:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple, dict, Any]] = []

    @torch.no_grad()
    def replay(self) -> None:
        """Repeat all calls, into the original result tensors."""
        for function, args, kwargs, results in self.calls:
            for old, new in zip(
                _tensors(results), _tensors(function(*args, **kwargs)), strict=True
            ):
                if old is not new and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def pool(self) -> str:
        """Name the memory."""
        return "a pool"


@contextmanager
def capturing(
    graph: RecordedGraph,
    device: torch.device,
    pool: Any = None,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """Stand in for ``mqe.cuda_graphs.capturing``."""
    recorder = _Recorder(graph)
    state = None if generator is None else generator.get_state()
    _recording.append(graph)
    try:
        with recorder:
            yield
    finally:
        _recording.pop()
        recorder.undo()
        if generator is not None and state is not None:
            generator.set_state(state)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph
        # By address: all of a storage, and a copy of it.
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("the host asks for a value while a graph is recorded")
        for tensor in _tensors((args, kwargs)):
            self._keep(tensor)
        results = func(*args, **kwargs)
        self.graph.calls.append((func, args, kwargs, results))
        return results

    def _keep(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._before:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._before[storage.data_ptr()] = (whole, whole.clone())

    def undo(self) -> None:
        """Restore all tensors to their earlier values."""
        for whole, copy in self._before.values():
            whole.copy_(copy)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class LaunchedSim:
    """A CPU simulator in the role of a GPU simulator: it skips steps under recording and takes them
    at replays only.
    """

    def __init__(self, sim: Any, graphs: GraphSupport) -> None:
        self._sim = sim
        self.features = sim.features._replace(graphs=graphs, snapshot=self._snapshot)

    def step(self, decimation: int, ctrl: torch.Tensor | None = None) -> None:
        """Step now, or at every replay."""
        if _recording:
            _recording[-1].calls.append((self._sim.step, (decimation, ctrl), {}, None))
        else:
            self._sim.step(decimation, ctrl)

    def _snapshot(self, env: int) -> Any:
        assert not _recording, "the host asks for a world while a graph is recorded"
        return snapshot(self._sim, env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sim, name)


def launched(env: MultiAgentEnv) -> MultiAgentEnv:
    """Have an environment on the CPU work as one on a GPU does."""
    env.sim = LaunchedSim(env.sim, env._graphs)  # type: ignore[assignment]
    env.use_graphs = True
    env.is_synchronous = False
    return env


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace graphs in later recordings with this module's."""
    monkeypatch.setattr("mqe.cuda_graphs.capturing", capturing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
