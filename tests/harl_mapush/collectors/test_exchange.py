"""harl_mapush.collectors.exchange: shared blocks and weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.multiprocessing import get_context

from harl_mapush.collectors import collector_process, exchange
from harl_mapush.collectors.exchange import Channel, Exchange
from harl_mapush.learning.off_policy.replay_buffer import replay_shape
from mqe.config import ConfigError

SHAPE = replay_shape(
    40, 2, num_agents=2, obs_size=3, action_size=2, num_views=1, state_size=4, num_rings=2
)


def networks(width: int = 2) -> list[nn.Module]:
    return [nn.Linear(3, width), nn.BatchNorm1d(2)]


class Team:
    """Records the loaded weights like a collector. ``interrupt`` runs within each loading."""

    def __init__(self, interrupt=lambda: None) -> None:
        self.actors = networks()
        self.interrupt = interrupt
        self.versions: list[int] = []

    def load(self, weights, num_updates: int) -> None:
        for actor, state in zip(self.actors, weights, strict=True):
            actor.load_state_dict(state)
            self.interrupt()
        self.versions.append(num_updates)


def fill(channel: Channel) -> None:
    channel.block(1).rewards.fill_(7.0)
    channel.counts[0] = 3


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_collector_writes_into_its_blocks_from_another_process(start: str) -> None:
    shared = Exchange(SHAPE, 5, 3, networks(), 0)
    channel = shared.channel(1)
    assert channel.counts.tolist() == [-1, 0]
    assert channel.block(2).obs.shape == (5, 2, 2, 3)
    process = get_context(start).Process(target=fill, args=(channel,))
    process.start()
    process.join()
    assert channel.counts.tolist() == [3, 0]
    assert bool((shared.channel(1).block(1).rewards == 7.0).all())
    assert not bool((shared.channel(0).block(1).rewards == 7.0).any())


def test_weights_arrive_as_they_were_published() -> None:
    actors = networks()
    shared = Exchange(SHAPE, 5, 3, actors, 70)
    first = actors[0].weight.clone()
    with torch.no_grad():
        actors[0].weight.add_(1.0)  # a later update
    team = Team()
    collector_process.load_newest(team, shared.channel(0))
    assert torch.equal(team.actors[0].weight, first)
    assert shared.channel(0).counts[1] == 70
    shared.publish(actors, 70)  # the number of updates is the same
    collector_process.load_newest(team, shared.channel(0))
    assert torch.equal(team.actors[0].weight, first)
    shared.publish(actors, 71)
    collector_process.load_newest(team, shared.channel(0))
    assert torch.equal(team.actors[0].weight, actors[0].weight)
    assert team.versions == [70, 70, 71]


def test_weights_that_change_while_they_are_read_are_read_again() -> None:
    actors = networks()
    shared = Exchange(SHAPE, 5, 3, actors, 1)

    def publish() -> None:
        with torch.no_grad():
            actors[0].weight.fill_(2.0)
        shared.publish(actors, 2)

    team = Team(publish)
    collector_process.load_newest(team, shared.channel(0))
    assert team.versions == [1, 2]
    assert bool((team.actors[0].weight == 2.0).all())
    assert shared.channel(0).counts[1] == 2


def test_missing_shared_memory_is_an_error_with_the_setting(monkeypatch) -> None:
    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("unable to allocate shared memory")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(ConfigError, match=r"runner\.queue_blocks: no shared memory for 3 blocks"):
        exchange.Exchange(SHAPE, 5, 3, networks(), 0)
