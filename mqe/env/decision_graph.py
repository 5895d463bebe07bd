"""One CUDA graph for a whole decision: simulator, task, resets and statistics, replayed without
the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mqe.cuda_graphs import GraphedFunction
from mqe.vec_env import TimeStep
from mqe.world.state import SceneState


class StepResult(NamedTuple):
    """Result of ``MultiAgentEnv.step``, with the state and the episode metrics after it."""

    step: TimeStep
    state: SceneState
    episode_metrics: dict[str, Tensor]  # (N,) each


def captured_step(device: torch.device) -> GraphedFunction[StepResult]:
    """Return a runner for decisions (N, A, U), a graph from its third call on.

    The caller owns the step's tensors. The next call overwrites all other results.
    """
    return GraphedFunction(device, _pack, _unpack)


def _pack(result: StepResult) -> tuple[PackedStep, SceneState, dict[str, Tensor]]:
    return PackedStep(result.step), result.state, result.episode_metrics


def _unpack(packed: tuple[PackedStep, SceneState, dict[str, Tensor]]) -> StepResult:
    step, state, metrics = packed
    # A new object, since values cached in the last state are outdated.
    return StepResult(step.copy(), state.like(state.rows), metrics)


class PackedStep:
    """A TimeStep in two tensors, one for masks and one for floats, so a copy takes two
    operations.
    """

    def __init__(self, step: TimeStep) -> None:
        """Take ``step`` as it is."""
        self._info = tuple(step.info)
        tensors: dict[str, Tensor] = {**step._asdict(), **step.info}
        del tensors["info"]
        masks = {name for name, tensor in tensors.items() if tensor.dtype == torch.bool}
        self._masks = _Joined({name: tensor for name, tensor in tensors.items() if name in masks})
        self._numbers = _Joined(
            {name: tensor for name, tensor in tensors.items() if name not in masks}
        )

    def copy(self) -> TimeStep:
        """Return a copy."""
        tensors = self._masks.copy() | self._numbers.copy()
        info = {name: tensors.pop(name) for name in self._info}
        return TimeStep(**tensors, info=info)


class _Joined:
    """Tensors of one type, concatenated in one."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self._values = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])

    def copy(self) -> dict[str, Tensor]:
        parts = self._values.clone().split([shape.numel() for shape in self._shapes.values()])
        return {
            name: part.view(shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
