"""Device operations in a decision: no host synchronisation, and a small count, since each operation
has a fixed cost on a GPU.
"""

from __future__ import annotations

import pytest

from mqe import registry
from mqe.registry import EnvCfg, SimCfg
from mqe.tasks.push import PushCfg
from mqe.tasks.push.settings import PRESETS
from mqe.world.randomization import RandomizationCfg
from tests.support.operations import operations_of_a_decision
from tests.support.pushing import make_env

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


CASES = {
    "push": (PushCfg(), 2, 385),
    "cylinder": (PushCfg(object="cylinder"), 3, 385),
    "five control steps": (PushCfg(decision_period=5), 2, 1150),
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


def test_lost_robots_wait_for_nothing_either() -> None:
    lost = RandomizationCfg(lost_robots=("dead", "absent", "late"), lost_time=(0.0, 5.0))
    env = registry.make_env(EnvCfg(4, 2, randomize=lost), SIM, PushCfg(), seed=0)
    plain = registry.make_env(EnvCfg(4, 2), SIM, PushCfg(), seed=0)
    assert operations_of_a_decision(env) - operations_of_a_decision(plain) <= 140
