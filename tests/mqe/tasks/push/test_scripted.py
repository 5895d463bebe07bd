"""Scripted teams."""

from __future__ import annotations

from typing import Any

import pytest

from harl_mapush import config
from harl_mapush.evaluation.calculator import first_episodes
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, make_env


def worlds(num_envs: int, num_agents: int, **task: Any) -> MultiAgentEnv:
    over = {
        "env": {"num_envs": num_envs, "num_agents": num_agents, "model": "physical"},
        "sim": {"name": "mujoco", "device": "cpu"},
        "task": {"spawn": "separated", "decision_period": 5, "action_scale": [1.0] * 3} | task,
    }
    cfg, _ = config.resolve({}, over)
    return make_env(cfg.env, cfg.sim, cfg.task, 7)


@pytest.mark.slow
def test_robots_abreast_line_up_in_their_order_without_collisions():
    """Two robots slide a box of 70 N, whichever of them starts on which side."""
    env = worlds(4, 2, object_mass="70 N", goal_distance=[1.4, 1.6], observation="sets")
    team = TASKS["go1push_mid"].policies["scripted_team"](env)
    episodes = first_episodes(env, team)
    env.close()
    assert float((episodes["success"] > 0.5).float().mean()) >= 0.75
    assert not bool((episodes["collision"] > 0.5).any())
