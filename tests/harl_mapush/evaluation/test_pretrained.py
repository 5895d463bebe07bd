"""Shipped teams push their objects to the goal as teams, one of each kind: reference and physical
robots, HASAC's and HAPPO's actors, observed sets, poses, three robots.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.evaluation.calculator import Policy
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import load_team
from mqe.config import to_dict
from mqe.env.environment import MultiAgentEnv
from mqe.pretrained import PRETRAINED
from mqe.registry import make_env
from mqe.world.randomization import RandomizationCfg

TEAMS = ("any", "cuboid", "cuboid_happo", "team2", "pose", "cylinder")
OBJECTS = {
    "cuboid_happo": "cuboid",
    "any": "cuboid",  # here every world has a shape of its own in its place
    "team2": "cuboid",
    "pose": "tblock",
}  # where a team is not named after its object
# What needs the whole team where a team's own worlds do not.
WORLDS = {
    "any": {"env": {"num_agents": 2}, "task": {"shapes": None, "object_mass": 18.0}},
    "pose": {"env": {}, "task": {"shapes": None, "object": "tblock", "object_mass": 4.0}},
}
NUM_ENVS = 4
# The slowest world is not waited for; of three robots one comes late, so that all count.
NUM_ENDED = {"cylinder": 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEAMS)
def test_a_shipped_team_pushes(name: str) -> None:
    folder = checkpoint.resolve(PRETRAINED + name)
    task = {
        "spawn": "separated",
        "success_radius": 1.0,
        "goal_distance": [1.4, 1.6],
        "episode_length_s": 15.0,
        "close_share": 0,
        "tangled_share": 0,
    }
    world_settings = WORLDS.get(name, {"env": {}, "task": {}})
    over = {
        "env": {
            "num_envs": NUM_ENVS,
            "randomize": to_dict(RandomizationCfg()),
            **world_settings["env"],
        },
        "sim": {"name": "mujoco", "device": "cpu"},
        "task": {**task, **world_settings["task"]},
    }
    cfg, _ = config.resolve(checkpoint.read_config(folder), over)
    assert cfg.task.object == OBJECTS.get(name, name)
    env = make_env(cfg.env, cfg.sim, cfg.task, seed=1)
    num_ended = NUM_ENDED.get(name, NUM_ENVS - 1)
    successes, shares = first_episodes(env, load_team(folder, env), num_ended)
    env.close()
    assert float(successes.mean()) >= 2 / 3 - 1e-6
    assert float(shares.mean(dim=0).min()) > 0.5 / cfg.env.num_agents


@torch.no_grad()
def first_episodes(env: MultiAgentEnv, team: Policy, num_ended: int) -> tuple[Tensor, Tensor]:
    """Play each world's first episode until K have ended. Return their successes (K,) and the
    robots' fractions of the contacts (K, A).
    """
    names = ["success", *(f"contact_share_agent{agent}" for agent in range(env.num_agents))]
    has_ended = torch.zeros(env.num_envs, dtype=torch.bool)
    ended: list[Tensor] = []
    obs, _ = env.reset()
    while len(ended) < num_ended:
        step = env.step(team(obs))
        obs = step.obs
        ends_now = step.done & ~has_ended
        if not bool(ends_now.any()):
            continue
        assert bool(step.valid[ends_now].all())
        metrics = torch.stack([env.episode_metrics[name] for name in names], dim=1)
        ended += metrics[ends_now]
        has_ended |= ends_now
        env.pause(has_ended)
    table = torch.stack(ended)
    return table[:, 0], table[:, 1:]
