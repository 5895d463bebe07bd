"""Transitions with numbers unique to decision and world."""

from __future__ import annotations

import torch

from harl_mapush.learning.off_policy.replay_buffer import Transition

GAMMA = 0.5


def transition(number: float, num_envs: int = 2, **flags: list[bool]) -> Transition:
    """Every number of world n in it tells ``number`` and n apart: obs 100 number + n, next obs 0.5
    more.
    """
    world = 100.0 * number + torch.arange(float(num_envs)).view(-1, 1, 1)
    never = torch.zeros(num_envs, dtype=torch.bool)
    given = {name: torch.tensor(values) for name, values in flags.items()}
    by_task = given.get("terminated", never)
    return Transition(
        obs=world.expand(-1, 2, 3),
        state=world.expand(-1, 1, 4) + 0.25,
        actions=world.expand(-1, 2, 2) / 1000.0,
        active=torch.tensor([True, False]).expand(num_envs, 2),
        rewards=world[:, :, 0],
        next_obs=world.expand(-1, 2, 3) + 0.5,
        next_state=world.expand(-1, 1, 4) + 0.75,
        terminated=by_task.unsqueeze(1).expand(-1, 2),
        done=given.get("done", never) | by_task | ~given.get("valid", ~never),
        valid=given.get("valid", ~never),
    )
