"""HATD3: noise by world, and learning on a toy."""

from __future__ import annotations

import pytest
import torch

from harl_mapush.distributed.ranks import Ranks
from harl_mapush.learning.settings import NetworkCfg
from mapush.extensions.harl.hatd3 import Hatd3, Hatd3Cfg, clipped_noise
from tests.support.means import mean_actions
from tests.support.off_policy_toys import SMALL, make, returns_of_toy
from tests.support.rounding import FEW_STEPS
from tests.support.toy import ToyEnv


def test_noise_is_scaled_then_clipped():
    noise = clipped_noise(torch.tensor([1.0, -4.0]), 0.2, 0.5)
    assert noise.tolist() == pytest.approx([0.2, -0.5])


def test_noise_differs_from_world_to_world():
    env = ToyEnv(2)
    team, experience = make("hatd3", env, **SMALL | {"exploration_noise": (0.0, 0.5)})
    team.num_updates = 1
    obs = env.seen  # type: ignore[attr-defined]
    explored = team.act(obs).actions
    mean, _ = mean_actions(team, obs)
    assert torch.equal(explored[0], mean[0])
    assert not torch.equal(explored[1], mean[1])
    assert float(explored.abs().max()) <= 1.0


def test_noise_differs_over_all_worlds_and_not_over_a_share():
    team = Hatd3(Hatd3Cfg(exploration_noise=(0.0, 0.4)), NetworkCfg(), ToyEnv(1).spec)
    obs = torch.zeros(1, 2, 3)
    for first, is_noisy in ((0, False), (4, True)):
        team.world_share = first, 5
        assert torch.equal(team.explore(obs), mean_actions(team, obs)[0]) != is_noisy
    # the third of four worlds
    team.ranks = Ranks(1, 2)
    team.world_share = (0, 2)
    team.noise = lambda *size: torch.ones(size)
    assert torch.allclose(
        team.explore(obs) - mean_actions(team, obs)[0], torch.tensor(0.8 / 3.0), atol=FEW_STEPS
    )


@pytest.mark.slow
def test_it_learns_the_toy():
    at_random, learned = returns_of_toy("hatd3", 2e-3, 0.05, 1 / 16, 215)
    assert at_random < 0.0
    assert learned > 0.5  # 1 is standing on the spot
