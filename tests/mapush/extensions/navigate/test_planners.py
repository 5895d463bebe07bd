"""Planners: the field leads round walls, way-points are followed."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

import mapush
from mapush.extensions.navigate.maps.arena_map import ArenaMap, Placed
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.followers import (
    LOOK_AHEAD,
    NEAREST,
    FieldFollower,
    WaypointFollower,
    swayed,
    turned,
)
from mapush.extensions.navigate.planners.problem import (
    Problem,
    lacking_room,
    solve_problem,
)
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.config import ConfigError
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.world.obstacles import ObstacleCfg
from tests.mapush.extensions.navigate.navigating import navigate_setup
from tests.support.operations import operations_of_a_decision
from tests.support.registries import restored_registries

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
    subgoals = solve_problem(maps, REACH, torch.device("cpu"))
    # Straight on; and round the corner at (0, 1), as far from it as the object reaches.
    assert subgoals.shortest[0] == pytest.approx(8.0, abs=0.1)
    assert subgoals.shortest[1] == pytest.approx(2.0 * math.hypot(4.0, 1.9), abs=0.5)
    return subgoals


def drive(problem: Problem, index: int) -> Tensor:
    """Return the positions (T, 2) of an object on the field's way, 0.1 m at a time."""
    follower = FieldFollower(problem)
    position = problem.maps.start[index : index + 1].clone()
    positions = [position]
    for _ in range(200):
        ahead = follower.subgoal(position, tensor([index])) - position
        distance = ahead.norm()
        goal_distance = (problem.maps.goal[index] - position).norm()
        assert min(NEAREST, float(goal_distance)) - 1e-4 <= distance <= LOOK_AHEAD + 1e-4
        position = position + 0.1 * ahead / distance
        positions.append(position)
        if goal_distance < 0.2:
            break
    return torch.cat(positions)


def test_the_field_leads_straight_where_nothing_is_between(problem):
    positions = drive(problem, 0)
    assert positions[:, 1].abs().max() < 0.1
    assert len(positions) < 83


def test_the_field_leads_round_a_wall(problem):
    positions = drive(problem, 1)
    assert (positions[-1] - problem.maps.goal[1]).norm() < 0.2
    free = problem.clearance(positions)[1]
    assert free.min() > REACH
    assert len(positions) < 110


def test_robots_need_room_where_they_push(problem):
    grid = problem.grid
    ways = tensor([[1.0, 0.0], [-1.0, 0.0]])
    beside = tensor([[1.3, 0.0]])  # of the wall at x = 0
    lacking = lacking_room(grid, problem.fields[:, 0], beside, ways, REACH)
    assert lacking[0].tolist() == [[0.0], [0.0]]
    assert float(lacking[1, 0]) > 0.3  # ahead: robots would stand in the wall
    assert float(lacking[1, 1]) == 0.0


def test_two_robots_abreast_need_room_behind_the_object(problem):
    # Past the end of the wall at (0, 1): there is room right behind the object, and not to the
    # right of that, 0.12 m from the wall.
    past = tensor([[0.75, 1.7]])
    ways = tensor([[1.0, 0.0], [0.0, 1.0]])
    lacking = lacking_room(problem.grid, problem.fields[:, 0], past, ways, REACH)
    assert float(lacking[1, 0]) == pytest.approx(1.0 - 0.12 / 0.35, abs=0.14)
    assert (
        float(lacking_room(problem.grid, problem.fields[:, 0], past, -ways, REACH)[1].sum()) == 0.0
    )
    assert lacking[0].tolist() == [[0.0], [0.0]]

    # Near the wall nobody has room: one would stand in it, two 0.21 m from it (between cells of
    # 0.25 m), and what they lack adds up.
    near = lacking_room(problem.grid, problem.fields[:, 0], tensor([[1.0, 0.0]]), ways, REACH)
    assert float(near[1, 0]) == pytest.approx(1.0 + 2.0 * (1.0 - 0.21 / 0.35), abs=0.34)


def test_sub_goals_sway_about_an_object_that_stands_still():
    position = tensor([1.0, 2.0]).expand(7, 2)
    turned = swayed(position + tensor([2.0, 0.0]), position, torch.arange(-1, 6)) - position
    angles = torch.atan2(turned[:, 1], turned[:, 0])
    torch.testing.assert_close(angles, tensor([0.0, 0.0, 0.4, -0.4, -0.4, 0.4, 0.4]))
    torch.testing.assert_close(turned.norm(dim=1), torch.full((7,), 2.0))


def test_the_sub_goal_of_a_slow_object_turns_for_two_seconds_in_eight():
    slow = torch.tensor([0, 11, 12, 15, 16, 27, 28, 31, 32, 44])
    position = tensor([1.0, 2.0]).expand(len(slow), 2)
    ahead = turned(position + tensor([2.0, 0.0]), position, slow) - position
    angles = torch.atan2(ahead[:, 1], ahead[:, 0])
    expected = tensor([0.0, 0.0, 0.8, 0.8, 0.0, 0.0, -0.8, -0.8, 0.0, 0.8])
    torch.testing.assert_close(angles, expected)


@pytest.mark.parametrize(("speed", "num_turned"), [(0.11, 4), (0.3, 0)])
def test_the_field_turns_the_sub_goal_of_an_object_that_goes_on_slowly(
    speed: float, num_turned: int
) -> None:
    task = navigate_setup(1).task
    position = task.layout(torch.zeros(1, dtype=torch.int64)).object_pos[:, :2]
    task.begin(torch.ones(1, dtype=torch.bool))
    angles = []
    for _ in range(24):  # of which the first are the robots' approach
        ahead = task.planning.next_subgoal(position) - position
        position = position + 0.5 * speed * ahead / ahead.norm()
        task.planning.update(position)
        now = task.planning.plan.planned - position
        straight = task.planning.next_subgoal(position) - position
        angles.append(float((now[0, 0] * straight[0, 1] - now[0, 1] * straight[0, 0]).abs()))
    assert sum(angle > 0.5 for angle in angles) == num_turned


def test_the_field_sways_after_the_robots_approach_until_the_object_moves_on():
    assert {name for name in PLANNERS if PLANNERS[name].sways} == {"field"}
    everywhere = torch.ones(1, dtype=torch.bool)
    tasks = [navigate_setup(1, planner=name).task for name in ("field", "straight_line")]
    position = tasks[0].layout(torch.zeros(1, dtype=torch.int64)).object_pos[:, :2]

    def bearing(task, position):
        task.planning.update(position)
        ahead = task.planning.plan.planned - position
        return float(torch.atan2(ahead[:, 1], ahead[:, 0]))

    for task in tasks:
        task.layout(torch.zeros(1, dtype=torch.int64))
        task.begin(everywhere)
    swaying, steady = tasks
    first = bearing(swaying, position)
    assert [bearing(swaying, position) for _ in range(15)] == [first] * 15
    turns = [bearing(swaying, position) - first for _ in range(4)]
    assert turns == pytest.approx([0.4, -0.4, -0.4, 0.4], abs=1e-5)
    assert len({bearing(steady, position) for _ in range(20)}) == 1
    # It moves on: no turn, and the next standstill is no approach.
    to_goal = swaying.planning.maps.goal[swaying.planning.map_index] - position
    onward = position + 0.25 * to_goal / to_goal.norm()
    swaying.planning.update(onward)
    assert int(swaying.planning._standstill) == 4
    swaying.begin(everywhere)
    assert bearing(swaying, position) == first
    swaying.planning.update(onward)  # it moves before the robots' time to come is over
    assert int(swaying.planning._standstill) == 0


def test_a_path_is_followed_from_the_nearest_point_on():
    corner = tensor([[[0.0, 0.0], [4.0, 0.0], [4.0, 4.0]]])
    follower = WaypointFollower(corner)
    index = torch.zeros(3, dtype=torch.int64)
    positions = tensor([[1.0, 0.5], [4.5, 1.0], [4.0, 3.9]])
    subgoals = follower.subgoal(positions, index)
    expected = tensor([[3.0, 0.0], [4.0, 3.0], [4.0, 4.0]])
    torch.testing.assert_close(subgoals, expected, rtol=0.0, atol=0.1)


@pytest.mark.parametrize("name", PLANNERS)
def test_every_planner_leads_from_anywhere(name, problem):
    follower = PLANNERS[name].follow(problem)
    positions = problem.maps.start.repeat(3, 1) + torch.rand(6, 2)
    subgoals = follower.subgoal(positions, tensor([0, 1]).repeat(3))
    assert subgoals.shape == (6, 2)
    assert bool(subgoals.isfinite().all())


def test_a_planner_of_ones_own_is_a_function_and_a_line():
    with restored_registries(PLANNERS):

        def along_the_top(problem: Problem) -> Tensor:
            """Along the upper wall."""
            maps = problem.maps
            top = torch.full_like(maps.start[:, :1], 3.0)
            over = [torch.cat((end[:, :1], top), dim=1) for end in (maps.start, maps.goal)]
            return torch.stack((maps.start, *over, maps.goal), dim=1)

        mapush.register_planner("along_the_top", along_the_top)
        task = navigate_setup(2, planner="along_the_top").task
        task.layout(torch.zeros(2, dtype=torch.int64))
        task.begin(torch.ones(2, dtype=torch.bool))
        assert task.memory[0, 1] > 1.5  # the first sub-goal is on the way up
    with pytest.raises(ConfigError, match="unknown value 'along_the_top'"):
        navigate_setup(1, planner="along_the_top")


def test_planning_waits_for_nothing() -> None:
    task = NavigateCfg(map="doors", num_maps=2)
    assert operations_of_a_decision(make_env(EnvCfg(2), SIM, task, seed=0)) > 1000
