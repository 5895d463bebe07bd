"""A checkpoint format of your own: a folder with linear.npz, one matrix for the whole team.

mapush test --import own_format --checkpoint FOLDER
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import mapush
from harl_mapush.runs.formats import Format
from mqe.vec_env import VecEnv

NUM_AGENTS = 2


class LinearTeam:
    """Actions are a matrix times the observations."""

    def __init__(self, folder: Path, env: VecEnv) -> None:
        matrix = np.load(folder / "linear.npz")["matrix"]  # (O, U)
        self.matrix = torch.from_numpy(matrix).to(env.device, torch.float32)

    def __call__(self, obs: Tensor) -> Tensor:
        return obs @ self.matrix

    def reset_memory(self, done: Tensor) -> None:
        """This team has no memory."""


mapush.register_format(
    "linear",
    Format(
        owner="a linear team's",
        config="linear.npz",
        folder="",
        is_format_of=lambda folder: (folder / "linear.npz").is_file(),
        num_agents=lambda folder: NUM_AGENTS,
        read_config=lambda folder: {"env": {"num_agents": NUM_AGENTS}},
        load_team=LinearTeam,
        actor_file=lambda agent: "linear.npz",
    ),
)
