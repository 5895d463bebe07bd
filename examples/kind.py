"""The robot's kind as an observation, ``kind``: -1 for the team's first robot, 1 for its last."""

import torch
from torch import Tensor

import mapush
from mqe.tasks.push.features import StepFeatures
from mqe.tasks.push.settings import PushCfg


def kind(step: StepFeatures) -> Tensor:
    """Return each robot's number in the team (N, A, 1), from -1 to 1."""
    state = step.state
    numbers = torch.linspace(-1.0, 1.0, state.num_robots, device=state.rows.device)
    return numbers.expand(len(state.robot_pos), -1).unsqueeze(-1)


def unchanged(cfg: PushCfg, size: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the places and signs of the numbers in a turned world."""
    return tuple(range(size)), (1.0,) * size


mapush.register_observation("kind", kind, (1.0,), noise=0.0, turn=unchanged)
