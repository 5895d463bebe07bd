"""Random numbers depend on seed, world, episode and purpose, and on nothing else."""

import math

import pytest
import torch

from mqe.world.streams import Streams


def test_draws_do_not_depend_on_what_was_drawn_before_or_on_the_number_of_worlds():
    few = Streams(7, 4, "cpu")
    many = Streams(7, 1000, "cpu")
    many.uniform(3, torch.zeros(1000, dtype=torch.int64), (5,))
    episode = torch.full((4,), 9)
    assert torch.equal(
        few.uniform(1, episode, (2, 3)), many.uniform(1, torch.full((1000,), 9), (2, 3))[:4]
    )


def test_seed_world_episode_and_purpose_each_change_the_draw():
    episode = torch.zeros(3, dtype=torch.int64)
    base = Streams(1, 3, "cpu").uniform(1, episode, (4,))
    assert len(base.unique()) == 12
    for other in (
        Streams(2, 3, "cpu").uniform(1, episode, (4,)),
        Streams(1, 3, "cpu").uniform(2, episode, (4,)),
        Streams(1, 3, "cpu").uniform(1, episode + 1, (4,)),
    ):
        assert not (base == other).any()


def test_draws_are_uniform_independent_and_normal():
    streams = Streams(0, 100_000, "cpu")
    episode = torch.zeros(100_000, dtype=torch.int64)
    u = streams.uniform(1, episode, (2,))
    assert float(u.min()) >= 0.0
    assert float(u.max()) < 1.0
    counts = torch.histc(u[:, 0], 20, 0.0, 1.0)
    assert float((counts - 5000).abs().max()) < 5 * 5000**0.5
    assert abs(float(torch.corrcoef(u.T)[0, 1])) < 0.015
    # Neighbouring worlds.
    assert abs(float(torch.corrcoef(torch.stack((u[:-1, 0], u[1:, 0])))[0, 1])) < 0.015
    normal = streams.normal(2, episode)
    assert abs(float(normal.mean())) < 0.015
    assert abs(float(normal.std()) - 1.0) < 0.015
    between = streams.between(-2.0, 3.0, 3, episode)
    assert float(between.min()) >= -2.0
    assert float(between.max()) < 3.0


def split_mix(x: int, folds: int = 3) -> int:
    """SplitMix64's finaliser in Python integers. ``folds`` 2 omits the last fold."""
    x &= 2**64 - 1
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))[:folds]:
        x = (x ^ (x >> shift)) * factor % 2**64
    return x


def test_draws_are_those_of_split_mix():
    seed = 7
    world = 2
    episode = 5
    purpose = 3
    step = 0x9E3779B97F4A7C15
    world_key = split_mix(split_mix(seed) + world * step)
    key = split_mix(world_key + split_mix(episode + (purpose << 40)))
    u = [(split_mix(key + k * step, folds=2) >> 40) / 2**24 for k in (1, 2)]
    streams = Streams(seed, 4, "cpu")
    episodes = torch.full((4,), episode)
    assert streams.uniform(purpose, episodes, (2,))[world].tolist() == u
    assert streams.normal(purpose, episodes)[world].item() == pytest.approx(
        math.sqrt(-2.0 * math.log(1.0 - u[0])) * math.cos(2.0 * math.pi * u[1]), rel=1e-5
    )
