"""What a decision asks of a device: nothing of the host, and few operations, for each costs a GPU
the same.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mqe import registry
from mqe.env.environment import MultiAgentEnv
from mqe.registry import EnvCfg, SimCfg
from mqe.tasks.push import PushCfg
from mqe.tasks.push.rewards import PRESETS
from mqe.tasks.velocity import VelocityCfg
from tests.support.pushing import make_env

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


class Operations(TorchDispatchMode):
    """Counts what a GPU would run; fails where an operation waits for the device or brings it
    numbers from the host.
    """

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
    """Take one decision as a GPU does, whatever ended or not; give the number of operations."""
    env.sim.synchronous = False
    env.captures = False
    actions = torch.zeros(env.num_envs, env.num_agents, max(env.action_sizes))
    env.reset()
    env.step(actions)  # tables are made once
    with Operations() as operations:
        env.step(actions)
    return operations.count


CASES = {
    "push": (PushCfg(), 2, 385),
    "cylinder": (PushCfg(object="cylinder"), 3, 385),
    "five control steps": (PushCfg(decision_period=5), 2, 1150),
    "gait": (VelocityCfg(), None, 460),
}


@pytest.mark.parametrize("case", CASES)
def test_a_decision_is_few_operations(case: str) -> None:
    task, num_agents, at_most = CASES[case]
    env = registry.make_env(EnvCfg(4, num_agents), SIM, task, seed=0)
    count = operations_of_a_decision(env)
    assert 0.8 * at_most < count <= at_most


@pytest.mark.parametrize("rewards", PRESETS)
@pytest.mark.parametrize("num_agents", [1, 3])
@pytest.mark.parametrize("observation", ["sincos", "reference"])
def test_nothing_waits_for_the_device(rewards: str, num_agents: int, observation: str) -> None:
    assert (
        operations_of_a_decision(make_env(5, num_agents, rewards=rewards, observation=observation))
        > 100
    )


def test_close_and_tangled_starts_wait_for_nothing_either() -> None:
    without = make_env(5, 3)
    mixed = make_env(5, 3, close_share=0.3, tangled_share=0.3)
    assert operations_of_a_decision(mixed) - operations_of_a_decision(without) <= 70
