"""Scripts for the examples with things, as policies of ``mapush test``.

PYTHONPATH=examples:benchmarks mapush test --import open_door --task open_door \
    --policy thing_scripts:press --num_episodes 300 --seed 2000

Each takes observations (N, A, O) and returns actions (N, A, 3). With ``--num_agents 1`` a robot is
alone.
"""

import torch
from torch import Tensor

NEAR = 0.6  # [m] from the door's handle, where robots begin to press


def ahead(obs: Tensor) -> Tensor:
    """Walk straight ahead."""
    actions = obs.new_zeros(*obs.shape[:-1], 3)
    actions[..., 0] = 1.0
    return actions


def to_first(obs: Tensor) -> Tensor:
    """Walk to the handle of the door, or into the robot's box."""
    return _towards(obs[..., 0:2])


def press(obs: Tensor) -> Tensor:
    """Walk to the door's handle, then the way that opens it."""
    handle = obs[..., 0:2]
    along = obs[..., 2:4]
    opening = torch.stack((along[..., 1], -along[..., 0]), dim=-1)
    is_near = handle.norm(dim=-1, keepdim=True) < NEAR
    return _towards(torch.where(is_near, opening, handle))


def pull(obs: Tensor) -> Tensor:
    """Walk in the direction from the sled's hook to its finish."""
    return _towards(obs[..., 2:4] - obs[..., 0:2])


def along(obs: Tensor) -> Tensor:
    """Walk in the direction in which a plank is to go."""
    return _towards(obs[..., 4:6])


def _towards(way: Tensor) -> Tensor:
    """Return actions that turn to ``way`` (N, A, 2), in the heading frame, and walk there."""
    turn = torch.atan2(way[..., 1], way[..., 0])
    speed = torch.cos(turn).clamp(min=0.0)
    return torch.stack((speed, torch.zeros_like(speed), (2.0 * turn).clamp(-1.0, 1.0)), dim=-1)
