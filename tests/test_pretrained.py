"""Every team that is shipped pushes its object to the goal, together."""

from __future__ import annotations

import pytest

from harl_mapush import checkpoint, config
from harl_mapush.evaluation import evaluate_push
from harl_mapush.policy import load_team
from mqe.gait import PRETRAINED, pretrained_folder
from mqe.registry import make_env

TEAMS = sorted(path.name for path in pretrained_folder("cuboid").parent.iterdir() if path.name != "go1_velocity")
NUM_ENVS = 16


@pytest.mark.parametrize("name", TEAMS)
def test_a_shipped_team_pushes(name: str) -> None:
    folder = checkpoint.resolve(PRETRAINED + name)
    over = {"env": {"num_envs": NUM_ENVS}, "sim": {"name": "mujoco", "device": "cpu"}, "task": {"spawn": "separated"}}
    cfg, _ = config.resolve(checkpoint.read_config(folder), over)
    assert cfg.task.object == name
    env = make_env(cfg.env, cfg.sim, cfg.task, seed=0)
    figures = evaluate_push(env, load_team(cfg, folder, env))
    env.close()
    assert figures["success_rate"] >= 0.75
    shares = [figures[f"contact_share_agent{agent}"] for agent in range(cfg.env.num_agents)]
    assert min(shares) > 0.5 / cfg.env.num_agents
