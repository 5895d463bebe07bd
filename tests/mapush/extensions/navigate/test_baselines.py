"""Planners and scripts from benchmarks, and the reference's high level."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import tensor

from mapush.extensions.navigate.maps.arena_map import ArenaMap, Placed
from mapush.extensions.navigate.maps.families import CUBE
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.problem import Problem, solve_problem
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.config import ConfigError
from mqe.registry import TASKS, SimCfg, make_env
from mqe.tasks.entry import EnvCfg
from mqe.world.obstacles import ObstacleCfg
from mqe.world.state import SceneState
from tests.mapush.extensions.navigate.navigating import MAP

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
WALL = ObstacleCfg("box", (0.2, 6.0, 0.6))
REACH = 0.85


@pytest.fixture(scope="module")
def problem() -> Problem:
    """An open arena, and one with a wall and a gap at its upper end."""
    arena = (12.0, 10.0)
    maps = (
        ArenaMap(arena, (-4.0, 0.0), (4.0, 0.0)),
        ArenaMap(arena, (-4.0, 0.0), (4.0, 0.0), (Placed(WALL, 0.0, -2.0),)),
    )
    solved = solve_problem(maps, REACH, torch.device("cpu"))
    # Straight on; and round the corner at (0, 1), as far from it as the object reaches.
    assert solved.shortest[0] == pytest.approx(8.0, abs=0.1)
    assert solved.shortest[1] == pytest.approx(2.0 * math.hypot(4.0, 1.9), abs=0.5)
    return solved


def test_the_references_spline_is_a_natural_cubic(problem, benchmarks):
    paths = benchmarks.spline(problem)
    assert paths.shape == (2, 13, 2)
    torch.testing.assert_close(paths[:, 0], problem.maps.start)
    torch.testing.assert_close(paths[:, -1], problem.maps.goal)
    # Cubics through knots on a line stay on it.
    knots = torch.arange(5.0).view(1, 5, 1).expand(1, 5, 2).double()
    line = benchmarks._natural_cubic(knots)
    torch.testing.assert_close(line[0, :, 0], torch.linspace(0.0, 4.0, 13).double())
    # Natural: no curvature at the ends; the sum of the squares of 0, 1, 0, 1, 0 by hand.
    bent = tensor([[[0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [4.0, 0.0]]]).double()
    at = benchmarks._natural_cubic(bent)[0, :, 1]
    assert at[[0, 3, 6, 9, 12]].tolist() == pytest.approx([0.0, 1.0, 0.0, 1.0, 0.0], abs=1e-9)


def test_the_references_tree_keeps_its_nodes_clear_of_middles_only(benchmarks):
    arena_map = ArenaMap((14.0, 15.0), (-5.4, 0.0), (4.0, 3.0), (Placed(CUBE, 0.0, 1.0),))
    solved = solve_problem((arena_map,), REACH, torch.device("cpu"))
    path = benchmarks.rrt(solved)
    assert path.shape == (1, 13, 2)
    torch.testing.assert_close(path[0, 0], solved.maps.start[0])
    torch.testing.assert_close(path[0, -1], solved.maps.goal[0])
    assert torch.equal(path, benchmarks.rrt(solved))


def test_ompl_keeps_the_object_clear_of_a_wall_and_finds_the_shortest_way(problem, benchmarks):
    pytest.importorskip("ompl", reason="it is an extra")
    paths = PLANNERS["ompl"].follow(problem).path
    lengths = (paths[:, 1:] - paths[:, :-1]).norm(dim=-1).sum(dim=1)
    assert lengths.tolist() == pytest.approx([8.0, 2.0 * math.hypot(4.0, 1.9)], rel=0.03)
    assert float(problem.clearance(paths)[1].min()) > REACH


def test_ompl_names_the_extra_that_it_needs(problem, monkeypatch, benchmarks):
    monkeypatch.setitem(sys.modules, "ompl", None)
    with pytest.raises(
        ConfigError, match=r"pip install '\.\[plan\]' .*, or say task.planner=field"
    ):
        PLANNERS["ompl"].follow(problem)


def test_without_a_high_level_the_sub_goal_is_the_goal(problem, benchmarks):
    solved = PLANNERS["goal"].follow(problem).subgoal(torch.zeros(1, 2), tensor([1]))
    assert torch.equal(solved, problem.maps.goal[1:])


def test_robots_without_a_team_walk_to_the_sub_goal_or_push_by_a_script(benchmarks) -> None:
    names = ("object_x", "object_y", "goal_x", "goal_y")
    ahead_and_left = tensor([[[1.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.25]]])
    walk = benchmarks.WalkingTeam(names, torch.device("cpu"))(ahead_and_left)
    torch.testing.assert_close(walk, tensor([[[1.0, 0.0, 0.0], [0.0, 0.5, 1.0]]]))
    state = SceneState.zeros(1, 2, True, num_obstacles=3)
    state.robot_pos[..., 0] = -1.5
    state.robot_pos[:, :, 1] = tensor([-0.3, 0.3])
    subgoal = tensor([[3.0, 0.0]])
    env = make_env(EnvCfg(num_envs=1), SIM, NavigateCfg(map=str(MAP)), seed=0)
    team = env.task.team
    for name, turns in (("walk", True), ("scripted_team", False), ("scripted_solo", False)):
        TASKS["go1push_upper"].policies[name](env)
        actions = team.policy(team._observe(state, subgoal))
        # Both turn to the sub-goal; or look along the way from the object to it.
        assert bool((actions[0, :, 2].abs() > 0.05).all()) == turns
        assert float(actions[0, 0, 0]) > 0.5
        is_pushing = name != "scripted_solo"
        assert (abs(float(actions[0, 1, 1])) < 0.7) == is_pushing  # the second steps aside
    env.close()


@pytest.mark.parametrize("name", ["goal", "spline", "rrt"])
def test_every_baseline_leads_from_anywhere(name: str, problem, benchmarks) -> None:
    follower = PLANNERS[name].follow(problem)
    places = problem.maps.start.repeat(3, 1) + torch.rand(6, 2)
    subgoal = follower.subgoal(places, tensor([0, 1]).repeat(3))
    assert subgoal.shape == (6, 2)
    assert bool(subgoal.isfinite().all())
