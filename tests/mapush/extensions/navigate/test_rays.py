"""Rays of the robots, and a planner without a map."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from mapush.extensions.navigate.maps.table import ObstacleShapes
from mapush.extensions.navigate.planners.cost_to_go import Grid
from mapush.extensions.navigate.planners.live import distance_to_met
from mapush.extensions.navigate.rays import NUM_RAYS, RANGE, look_around, ray_directions
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.registry import SimCfg, make_env
from mqe.tasks.entry import EnvCfg
from mqe.world.geometry import quat_from_yaw
from mqe.world.obstacles import PARKED_HEIGHT, ObstacleCfg
from mqe.world.state import SceneState
from tests.mapush.extensions.navigate.navigating import MAP, navigate_setup

ARENA = (20.0, 12.0)
SLOTS = (
    ObstacleCfg("box", (1.0, 1.0, 0.6)),
    ObstacleCfg("post", (0.15, 0.6)),
    ObstacleCfg("box", (4.0, 0.2, 0.6)),
)


def state_of(robots: list[tuple[float, float, float]]) -> SceneState:
    """Return a world with robots at x, y and yaw, and all obstacles parked."""
    state = SceneState.zeros(1, len(robots), True, num_obstacles=len(SLOTS))
    for k, (x, y, yaw) in enumerate(robots):
        state.robot_pos[0, k, :2] = tensor([x, y])
        state.robot_quat[0, k] = quat_from_yaw(tensor(yaw))
    state.obstacle_pos[..., 2] = PARKED_HEIGHT
    state.obstacle_quat[..., 0] = 1.0
    return state


def place(state: SceneState, slot: int, x: float, y: float, yaw: float = 0.0) -> None:
    state.obstacle_pos[0, slot] = tensor([x, y, 0.3])
    state.obstacle_quat[0, slot] = quat_from_yaw(tensor(yaw))


def look(state: SceneState) -> Tensor:
    """Return one world's ray distances (A, 64) [m]."""
    return look_around(state, ray_directions(state), ObstacleShapes(SLOTS, "cpu"), ARENA)[0]


def test_rays_end_at_boxes_posts_and_walls() -> None:
    state = state_of([(0.0, 0.0, 0.0)])
    place(state, 0, 2.0, 0.0)
    place(state, 1, 0.0, 3.0)
    place(state, 2, 0.0, -2.0)
    rays = look(state)[0]
    assert rays[0] == pytest.approx(1.5)  # ahead: the box's side
    assert rays[16] == pytest.approx(2.85)  # left: the post
    assert rays[32] == pytest.approx(10.0)  # behind: the arena's wall
    assert rays[48] == pytest.approx(1.9)  # right: the wall
    assert rays[8] == pytest.approx(6.0 * math.sqrt(2.0))  # between: the arena's wall
    assert rays[44] == pytest.approx(1.9 / math.sin(math.radians(67.5)))
    slant = math.tan(math.radians(2 * 360 / 64))
    assert rays[2] == pytest.approx(math.hypot(1.5, 1.5 * slant))


def test_rays_turn_with_the_robot_and_obstacles_with_their_yaw() -> None:
    state = state_of([(1.0, 1.0, math.pi / 2), (-1.0, 0.0, 0.0)])
    place(state, 0, 1.0, 4.0, math.pi / 4)
    place(state, 2, 3.0, 0.0, math.pi / 2)
    first, second = look(state)
    assert first[0] == pytest.approx(3.0 - math.sqrt(0.5))  # the box's corner
    assert first[48] == pytest.approx(1.9)  # right of it: the wall that stands across
    assert second[0] == pytest.approx(3.9)


def test_what_is_behind_parked_or_too_far_is_not_met() -> None:
    state = state_of([(-9.5, 0.0, 0.0), (2.0, 0.0, 0.0)])
    place(state, 0, 2.0, 0.0)
    place(state, 1, -4.0, 0.0)
    first, second = look(state)
    assert first[0] == pytest.approx(5.35)
    assert first[2] == RANGE
    assert torch.equal(second, torch.zeros(NUM_RAYS))  # inside the box
    assert look(state_of([(0.0, 0.0, 0.0)]))[0].max() == pytest.approx(RANGE)


def test_the_agent_observes_rays_in_place_of_the_map() -> None:
    mapped = navigate_setup(1).task
    task = navigate_setup(1, observation="rays").task
    names = task.terms.observations.names
    assert "rays" in names
    assert not {"obstacles", "cost_to_go"} & set(names)
    assert task.terms.state.names == mapped.terms.state.names  # the critic knows the map
    assert task.spec.obs_size == mapped.spec.obs_size - 7 * 6 - 1 + 2 * NUM_RAYS
    assert task.spec.symmetries.mirror is not None


def test_the_distance_to_what_was_met_is_that_of_the_nearest_place() -> None:
    grid = Grid((5.0, 4.0), 0.25)
    is_met = torch.rand(3, 2 * grid.height, 2 * grid.width) < 0.01
    is_met[2] = False
    distances = distance_to_met(is_met, grid, 1.5)
    fine = Grid((5.0, 4.0), 0.125)
    for cells, distance in zip(is_met[:2], distances, strict=False):
        to_all = torch.cdist(grid.centers.flatten(0, 1), fine.centers[cells])
        exact = to_all.amin(dim=1).view_as(distance)
        is_near = exact < 1.5
        assert bool(is_near.any())
        torch.testing.assert_close(distance[is_near], exact[is_near], atol=1e-5, rtol=0.0)
        assert bool((distance[~is_near] > 1.49).all())
    assert bool((distances[2] >= 100.0).all())


def explorer_env(num_envs: int = 2):
    cfg = NavigateCfg(map=str(MAP), planner="explore", observation="rays")
    sim = SimCfg(name="mujoco", device="cpu", num_threads=1)
    return make_env(EnvCfg(num_envs=num_envs), sim, cfg, seed=0)


def test_an_explorer_plans_around_what_rays_have_met_and_forgets_it_with_the_episode() -> None:
    env = explorer_env()
    env.reset()
    blind = env.task.memory[:, :2].clone()
    start = env.state.object_pos[:, :2].clone()
    free_cells = len(env.task.planning.cost_cells(0))
    torch.testing.assert_close(blind[:, 1], start[:, 1], atol=0.05, rtol=0.0)  # straight on
    step = env.step(torch.zeros(2, 1, 2))
    assert not bool(step.done.any())
    assert bool((env.task.memory[:, 1].abs() > 0.3).all())  # past the box in the way
    assert len(env.task.planning.cost_cells(0)) < free_cells  # the picture shows what is known
    mapped = env.task.constants.problem.distance[0]
    distance_field = env.task.planning.followed.problem.distance
    # Nothing is nearer than on the map, and what robots face is known to a fine cell.
    assert bool((distance_field > mapped - 0.1).all())
    # The cell at (-0.375, 0.125), beside the box.
    column = 18
    row = 16
    torch.testing.assert_close(
        distance_field[:, row, column], mapped[row, column].expand(2), atol=0.1, rtol=0.0
    )
    env.task.begin(tensor([True, False]))
    torch.testing.assert_close(env.task.memory[0, :2], blind[0])
    assert env.task.memory[1, 1].abs() > 0.3
    env.close()


def test_what_an_explorer_knows_is_saved() -> None:
    through = explorer_env()
    through.reset()
    through.step(torch.zeros(2, 1, 2))
    saved = through.state_dict()
    resumed = explorer_env()
    resumed.reset()
    resumed.load_state_dict(saved)
    for _ in range(2):
        steps = [env.step(torch.zeros(2, 1, 2)) for env in (through, resumed)]
    assert torch.equal(steps[0].obs, steps[1].obs)
    assert torch.equal(through.task.memory, resumed.task.memory)
    through.close()
    resumed.close()
