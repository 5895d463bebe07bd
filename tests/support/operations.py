"""The number of tensor operations in a decision."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mqe.env.environment import MultiAgentEnv


class Operations(TorchDispatchMode):
    """Counts a GPU's operations and fails at a synchronisation or a copy from the host."""

    forbidden = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "lift_fresh",
        "is_nonzero",
        "equal",
        "unique",
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.name().removeprefix("aten::").split(".")[0] not in self.forbidden, func.name()
        result = func(*args, **(kwargs or {}))
        is_empty = isinstance(result, Tensor) and result.numel() == 0
        self.count += not (func.is_view or is_empty)
        return result


def operations_of_a_decision(env: MultiAgentEnv) -> int:
    """Return the number of operations in one decision, computed as on a GPU."""
    env.is_synchronous = False
    env.use_graphs = False
    actions = torch.zeros(env.num_envs, env.num_agents, env.spec.action_size)
    env.reset()
    env.step(actions)  # tables are made once
    with Operations() as operations:
        env.step(actions)
    return operations.count
