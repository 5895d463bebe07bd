"""A shipped gait in worlds of the examination."""

from __future__ import annotations

import torch

from mapush.extensions.gait.gait_worlds import GaitWorlds, Walker
from mqe.controllers.gait import load_gait
from mqe.registry import SimCfg

CPU = torch.device("cpu")
SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


def test_the_shipped_gait_follows_a_command_and_stands() -> None:
    worlds = GaitWorlds(Walker(load_gait("pretrained:go1_velocity", CPU), SIM, 0), 4)
    command = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    velocity = []
    for _ in range(150):
        worlds.advance(command)
        velocity.append(worlds.velocity)
    assert not worlds.fallen.any()
    torch.testing.assert_close(torch.stack(velocity[50:]).mean(dim=0), command, atol=0.06, rtol=0)
