"""Plans, observations in every form, and walked objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harl_mapush import config
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.episodes import Request, play_request
from mapush.extensions.pivoting.pivoting_team import ObservedScene, RoundStands
from mapush.extensions.pivoting.push_plan import BINS, make_plan
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, make_env
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.world.objects import OBJECTS


def worlds(num_envs: int, num_agents: int, **task: Any) -> MultiAgentEnv:
    over = {
        "env": {"num_envs": num_envs, "num_agents": num_agents, "model": "physical"},
        "sim": {"name": "mujoco", "device": "cpu"},
        "task": {"spawn": "separated", "decision_period": 5, "action_scale": [1.0] * 3} | task,
    }
    cfg, _ = config.resolve({}, over)
    return make_env(cfg.env, cfg.sim, cfg.task, 7)


@pytest.mark.parametrize(
    "obj", [OBJECTS["cuboid"], OBJECTS["tblock"], OBJECTS["beam"]], ids=lambda obj: obj.name
)
def test_plan_keeps_a_stand_until_another_is_better(obj: Any):
    plan = make_plan(obj, 2)
    assert plan.choice.shape == (BINS, len(plan.middles))
    settled = plan.choice[torch.arange(BINS).unsqueeze(1).numpy(), plan.choice]
    assert (settled == plan.choice).mean() > 0.95


def test_beam_is_pushed_at_its_ends():
    """With the goal straight ahead the team stands at one end of the long side behind the beam."""
    plan = make_plan(OBJECTS["beam"], 1)
    stand = plan.choice[0, 0]
    assert plan.normals[stand][0] == pytest.approx(1.0)
    assert abs(plan.middles[stand][1]) > 1.0


def test_all_forms_of_observation_say_the_same():
    scenes = []
    for observation in ("sincos", "reference", "sets"):
        env = worlds(3, 2, observation=observation)
        obs, _ = env.reset()
        names = env.task.obs_names(0)
        read = ObservedScene(names, OBJECTS["cuboid"], CommandLimit(names, 0.3, 5), "cpu")
        scenes.append(read(obs))
        env.close()
    first = scenes[0]
    for scene in scenes[1:]:
        assert torch.allclose(scene.goal, first.goal, atol=1e-4)
        assert torch.allclose(scene.heading.cos(), first.heading.cos(), atol=1e-4)
        there = scene.is_there.sum(-1)
        assert (there == 2).all()
        assert torch.allclose(scene.robots[..., :2, :], first.robots, atol=1e-4)


@pytest.mark.slow
def test_one_robot_walks_a_beam_that_it_cannot_slide():
    """A robot with a 59 N push moves a beam with 70 N sliding friction. A straight push does
    not.
    """
    task = {
        "object": "beam",
        "object_mass": "70 N",
        "goal_distance": [1.5, 1.6],
        "episode_length_s": 10.0,
    }
    shares = {}
    for name in ("scripted_walk", "scripted_team"):
        env = worlds(2, 1, **task)
        episodes = first_episodes(env, TASKS["go1push_mid"].policies[name](env))
        shares[name] = float((episodes["success"] > 0.5).float().mean())
        env.close()
    assert shares == {"scripted_walk": 1.0, "scripted_team": 0.0}


@pytest.mark.slow
def test_round_object_is_pushed_straight_without_collisions():
    """Two robots push a cylinder of 75 N abreast, and a stand is always opposite the goal."""
    env = worlds(4, 2, object="cylinder", object_mass="75 N", goal_distance=[1.4, 1.6])
    episodes = first_episodes(env, TASKS["go1push_mid"].policies["scripted_walk"](env))
    assert float((episodes["success"] > 0.5).float().mean()) >= 0.75
    assert not bool((episodes["collision"] > 0.5).any())
    env.close()
    stands = RoundStands(OBJECTS["cylinder"], "cpu")
    goal = torch.tensor([[[0.0, 2.0]]])
    middle, normal, direction, _ = stands.at(torch.zeros(1, 1), goal)
    assert torch.allclose(middle, torch.tensor([[[0.0, -1.5]]]), atol=2e-3)
    assert torch.equal(normal, direction)


def test_shapes_that_differ_have_no_plan():
    env = worlds(2, 2, shapes="held_out", observation="sets")
    with pytest.raises(ConfigError, match="scripted_walk plans for one object"):
        TASKS["go1push_mid"].policies["scripted_walk"](env)
    env.close()


@pytest.mark.slow
def test_a_memory_belongs_to_a_block_of_worlds() -> None:
    settings = {
        "task": {"episode_length_s": 0.4},
        "env": {"num_agents": 1},
        "sim": {"name": "mujoco", "device": "cpu"},
    }
    cfg, _ = config.resolve({}, settings)
    request = Request(cfg, (0,), 6, function="scripted_walk")
    fewer = replace(cfg, env=replace(cfg.env, num_envs=4))
    blocks = (request, replace(request, cfg=fewer))
    together, apart = (play_request(played) for played in blocks)
    for name, values in together[0].items():
        torch.testing.assert_close(apart[0][name], values, rtol=0, atol=1e-5, equal_nan=True)
