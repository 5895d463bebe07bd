"""Every team that is shipped pushes its object to the goal, together."""

from __future__ import annotations

import pytest

from harl_mapush import config
from harl_mapush.evaluation.calculator import evaluate
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import load_team
from mqe.config import to_dict
from mqe.controllers.gait_network import DESCRIPTION
from mqe.pretrained import PRETRAINED, pretrained_folder
from mqe.registry import make_env
from mqe.world.randomization import RandomizationCfg

SHIPPED = sorted(path.name for path in pretrained_folder("cuboid").parent.iterdir())
LEADER = "leader"
GAITS = [name for name in SHIPPED if (pretrained_folder(name) / DESCRIPTION).is_file()]
TEAMS = [name for name in SHIPPED if name not in (LEADER, *GAITS)]
OBJECTS = {
    "cuboid_happo": "cuboid",
    "any": "cuboid",  # here every world has a shape of its own in its place
    "team2": "cuboid",
    "team2_tblock": "tblock",
    "pose": "tblock",
    "beam": "beam",
}  # where a team is not named after its object
# What needs the whole team where a team's own worlds do not.
WORLDS = {
    "any": {"env": {"num_agents": 2}, "task": {"shapes": None, "object_mass": 18.0}},
    "beam": {"env": {"num_agents": 2}, "task": {"object_mass": 22.0}},
    "pose": {"env": {}, "task": {"shapes": None, "object": "tblock", "object_mass": 4.0}},
}
NUM_ENVS = 8


@pytest.mark.parametrize("name", TEAMS)
def test_a_shipped_team_pushes(name: str) -> None:
    folder = checkpoint.resolve(PRETRAINED + name)
    task = {
        "spawn": "separated",
        "success_radius": 1.0,
        "goal_distance": [1.5, 2.0],
        "episode_length_s": 15.0,
        "close_share": 0,
        "tangled_share": 0,
    }
    own = WORLDS.get(name, {"env": {}, "task": {}})
    over = {
        "env": {"num_envs": NUM_ENVS, "randomize": to_dict(RandomizationCfg()), **own["env"]},
        "sim": {"name": "mujoco", "device": "cpu"},
        "task": {**task, **own["task"]},
    }
    cfg, _ = config.resolve(checkpoint.read_config(folder), over)
    assert cfg.task.object == OBJECTS.get(name, name)
    env = make_env(cfg.env, cfg.sim, cfg.task, seed=0)
    metrics = evaluate(env, load_team(cfg, folder, env))
    env.close()
    assert metrics["success_rate"] >= 0.75
    shares = [metrics[f"contact_share_agent{agent}"] for agent in range(cfg.env.num_agents)]
    assert min(shares) > 0.5 / cfg.env.num_agents


def test_the_shipped_leader_leads_its_team() -> None:
    folder = checkpoint.resolve(PRETRAINED + LEADER)
    over = {
        "env": {"num_envs": 2},
        "sim": {"name": "mujoco", "device": "cpu"},
        "task": {"num_maps": 2},
    }
    cfg, _ = config.resolve(checkpoint.read_config(folder), over)
    assert cfg.task.team == f"{PRETRAINED}team2"
    env = make_env(cfg.env, cfg.sim, cfg.task, seed=0)
    leader = load_team(cfg, folder, env)
    obs, _ = env.reset()
    start = env.state.object_pos.clone()
    for _ in range(20):  # 10 s
        obs = env.step(leader(obs)).obs
    moved = env.state.object_pos - start
    env.close()
    assert (moved[:, :2].norm(dim=1) > 1.0).all()
