"""Sets in vectors: order, masks, cost, and every algorithm."""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from harl_mapush.algorithms.entries import ALGORITHMS, make_algorithm
from harl_mapush.algorithms.happo import Happo
from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.learning.networks import Actor, Critic
from harl_mapush.learning.off_policy.q_networks import TwinCritic
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runner import Runner, RunnerCfg
from mqe.controllers.set_readers import Pool, SetReader, entities_of
from mqe.env.environment import MultiAgentEnv
from mqe.vec_env import EntityBlock, TeamSpec
from tests.support.pushing import make_env, make_task
from tests.support.rounding import in_double, rounding

LARGEST = 0.2e6  # multiply-adds of an actor's decision


@pytest.fixture(scope="module")
def spec() -> TeamSpec:
    return make_task(1, 3, observation="sets").spec


def vectors(size: int, blocks: Sequence[EntityBlock], num_there: int = 3) -> Tensor:
    """Return 10 random vectors with ``num_there`` present entities in each set, and zeros
    elsewhere.
    """
    x = torch.randn(10, size)
    for block in blocks:
        entities = entities_of(x, block)
        entities[..., 0] = 1.0
        entities[:, num_there:] = 0.0
    return x


def changed(x: Tensor, block: EntityBlock, entities: Tensor) -> Tensor:
    other = x.clone()
    other[:, block.start : block.end] = entities.flatten(1)
    return other


def test_a_reader_does_not_see_the_order_of_entities_nor_those_that_are_not_there(spec):
    torch.manual_seed(0)
    actor = Actor(NetworkCfg((16,), gain=1.0), spec.obs_size, 3, spec.obs_sets)
    x = vectors(spec.obs_size, spec.obs_sets)
    bound = rounding(actor(x), in_double(actor)(x.double()))
    for block in spec.obs_sets:
        entities = entities_of(x, block)
        shuffled = changed(x, block, entities[:, torch.randperm(block.num_entities)])
        hidden = entities.clone()
        hidden[:, 3:, 1:] = 5.0  # whatever stands where no entity is
        close = partial(torch.allclose, rtol=0.0, atol=bound)
        assert close(actor(x), actor(shuffled))
        assert close(actor(x), actor(changed(x, block, hidden)))
    empty = vectors(spec.obs_size, spec.obs_sets, 0)
    assert bool(torch.isfinite(actor(empty)).all())


def test_a_reader_sees_all_robots(spec):
    torch.manual_seed(0)
    actor = Actor(NetworkCfg((16,), gain=1.0), spec.obs_size, 3, spec.obs_sets)
    x = vectors(spec.obs_size, spec.obs_sets, 7)
    x.requires_grad_(True)
    (grad,) = torch.autograd.grad(actor(x).sum(), x)
    robots = spec.obs_sets[0]
    is_seen = entities_of(grad, robots).abs().sum(dim=-1) > 0.0
    assert is_seen.sum(dim=1).max() == robots.num_entities == 7


def test_a_decision_costs_at_most_a_fifth_of_a_million_multiply_adds(spec):
    actor = Actor(NetworkCfg((128, 128)), spec.obs_size, 3, spec.obs_sets)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        actor(torch.zeros(1, spec.obs_size))
    assert 0 < counter.get_total_flops() / 2 <= LARGEST


def test_a_vector_without_sets_stays_as_it_is():
    reader = SetReader(8, (), 4)
    x = torch.randn(3, 8)
    assert reader(x) is x
    assert (reader.out_size, list(reader.parameters())) == (8, [])


def test_a_pool_is_the_mean_and_the_maximum_of_the_entities_that_are_there():
    torch.manual_seed(0)
    pool = Pool(3, 16)
    entities = torch.randn(5, 3)
    entities[:, 0] = 1.0
    entities[2:] = 0.0
    encoded = pool.encoder(entities[:2])
    expected = torch.cat((encoded.mean(dim=0), encoded.amax(dim=0)))
    assert int((expected > 0.0).sum()) > 8
    torch.testing.assert_close(pool(entities), expected)


def test_critics_do_not_see_the_order_of_the_robots(spec):
    """The action of a robot changes its place together with the robot."""
    torch.manual_seed(0)
    network = NetworkCfg((16,))
    critic = Critic(network, spec.state_size, 1, spec.state_sets)
    twins = TwinCritic(network, spec.state_size, (3, 3, 3), spec.state_sets)
    x = vectors(spec.state_size, spec.state_sets)
    actions = torch.randn(10, 3, 3)
    robots = spec.state_sets[1]
    assert robots.are_robots
    order = torch.tensor([2, 0, 1])
    entities = entities_of(x, robots).clone()
    entities[:, :3] = entities[:, order]
    other = changed(x, robots, entities)
    values = twins(x.unsqueeze(1), actions.flatten(1))
    exact = in_double(twins)(x.unsqueeze(1).double(), actions.flatten(1).double())
    close = partial(torch.allclose, rtol=0.0, atol=rounding(values, exact))
    bound = rounding(critic(x), in_double(critic)(x.double()))
    assert torch.allclose(critic(x), critic(other), rtol=0.0, atol=bound)
    moved = twins(other.unsqueeze(1), actions[:, order].flatten(1))
    assert close(values, moved)
    swapped = twins(x.unsqueeze(1), actions[:, order].flatten(1))
    assert not close(values, swapped)


@pytest.fixture(scope="module")
def env():
    env = make_env(4, 2, observation="sets", decision_period=5, spawn="separated")
    yield env
    env.close()


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_learns_from_sets(algorithm: str, env: MultiAgentEnv):
    cls = ALGORITHMS[algorithm].cls
    settings = {"share_param": True}
    if isinstance(cls, type) and issubclass(cls, OffPolicy):
        settings |= {"warmup": 8, "batch_size": 8, "buffer_size": 64, "update_ratio": 0.125}
    cfg = ALGORITHMS[algorithm].cfg(**settings)
    team = make_algorithm(cfg, NetworkCfg((8,), set_width=4), env.spec, env.device, 1)
    assert isinstance(team, (OnPolicy, OffPolicy))
    before = {name: values.clone() for name, values in team.weights.items()}
    Runner(env, team, RunnerCfg(num_env_steps=80, num_steps=4)).learn([], None)
    for name in ("agent0", "critic"):
        assert not torch.equal(team.weights[name], before[name])
        assert bool(torch.isfinite(team.weights[name]).all())


def test_an_agent_that_takes_no_part_is_not_learned_from_and_has_no_share_in_the_factor(spec):
    cfg = ALGORITHMS["happo"].cfg(share_param=True)
    team = make_algorithm(cfg, NetworkCfg((8,), set_width=4), spec, "cpu", 1)
    assert isinstance(team, Happo)
    storage = team.make_experience(2, 4)
    storage.obs.normal_()
    storage.actions.normal_()
    storage.obs[..., 0] = 1.0
    storage.obs[1, :, 2:, 0] = 0.0  # agent 1 is away in the last two worlds
    storage.finish()
    assert storage.weights(0).tolist() == [[1.0] * 4] * 2
    assert storage.weights(1).tolist() == [[1.0, 1.0, 0.0, 0.0]] * 2
    storage.next_factor.fill_(1.0)
    team._update_factor(storage, 1, torch.zeros(2, 4, 3))
    assert bool((storage.next_factor[:, :2] != 1.0).all())
    assert bool((storage.next_factor[:, 2:] == 1.0).all())
