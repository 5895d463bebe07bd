"""mqe.tasks.push.planar: what predicted states are worth is what the task pays for them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from mqe.tasks.push.planar import PlanarPush
from mqe.tasks.push.rewards import PRESETS
from mqe.tasks.push.task import PushTask
from mqe.world.geometry import quat_from_yaw, rotate_2d
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from tests.support.pushing import make_task
from tests.support.scenes import changed, make_scene_state

NUM = 200


def planar_of(task: PushTask) -> PlanarPush:
    assert isinstance(task.planar, PlanarPush)
    return task.planar


def between(low: float, high: float, *size: int, seed: int) -> Tensor:
    return low + (high - low) * torch.rand(size, generator=torch.Generator().manual_seed(seed))


def level_scenes(task: PushTask, object_pos: Tensor, goal: Tensor, seed: int) -> SceneState:
    """Return worlds in which all is level and at the height that it has on flat ground, somewhere
    in the arena.
    """
    a = task.num_agents
    planar = planar_of(task)
    robots = object_pos.unsqueeze(1) + between(-1.5, 1.5, NUM, a, 2, seed=seed)
    heights = planar._robot_height.view(1, a, 1).expand(NUM, a, 1)
    object_height = torch.full((NUM, 1), planar._object_height)
    yaw = between(-math.pi, math.pi, NUM, a + 1, seed=seed + 1)
    velocity = torch.cat(
        (between(-0.5, 0.5, NUM, a, 2, seed=seed + 2), torch.zeros(NUM, a, 1)), dim=-1
    )
    turning = torch.cat(
        (torch.zeros(NUM, a, 2), between(-1.0, 1.0, NUM, a, 1, seed=seed + 3)), dim=-1
    )
    return make_scene_state(
        torch.cat((robots, heights), dim=-1),
        robot_quat=quat_from_yaw(yaw[:, :a]),
        robot_linvel=velocity,
        robot_angvel_b=turning,
        object_pos=torch.cat((object_pos, object_height), dim=1),
        object_quat=quat_from_yaw(yaw[:, a]),
        goal_pos=torch.cat((goal, torch.zeros(NUM, 1)), dim=1),
    )


def test_a_model_gets_the_numbers_of_the_critics_state() -> None:
    planar = planar_of(make_task(1, 2))
    assert planar.world_names == ("goal_distance", "object_sin", "object_cos")
    assert planar.robot_names == ("x", "y", "sin", "cos", "vx", "vy", "yaw_rate")


def pushed_scenes(task: PushTask) -> tuple[SceneState, SceneState]:
    """Return worlds before and after a control step in which the object came straight towards its
    goal, or left it.
    """
    goal = between(-5.0, 5.0, NUM, 2, seed=1)
    way = rotate_2d(tensor([1.0, 0.0]), between(-math.pi, math.pi, NUM, seed=2))
    distance = between(0.8, 3.0, NUM, 1, seed=3)
    speed = between(-0.3, 0.6, NUM, 1, seed=4)
    before = level_scenes(task, goal - way * distance, goal, seed=5)
    after = level_scenes(task, goal - way * (distance - speed * STEP_DT), goal, seed=9)
    object_linvel = torch.cat((way * speed, torch.zeros(NUM, 1)), dim=1)
    return before, changed(after, object_linvel=object_linvel)


@pytest.mark.parametrize("rewards", PRESETS)
@pytest.mark.parametrize(("kind", "num_agents"), [("cuboid", 2), ("cylinder", 3)])
def test_rewards_of_predicted_states_are_those_of_the_task_in_the_true_ones(
    rewards, kind, num_agents
):
    task = make_task(NUM, num_agents, rewards=rewards, object=kind, weights={"ocb_expanded": 0.0})
    planar = planar_of(task)
    before, after = pushed_scenes(task)
    state, next_state = (task.observe(scene, task.memory)[1] for scene in (before, after))
    stand_in = planar._scene(next_state, (before.goal_distance - after.goal_distance) / STEP_DT)
    forces = stand_in.forces.clone()  # along the way to the goal, in the frame that looks that way
    pushes = stand_in.contact_force[..., :1] * after.goal_direction.unsqueeze(1)
    forces[:, : 3 * num_agents] = torch.cat(
        (pushes, torch.zeros_like(pushes[..., :1])), dim=-1
    ).flatten(1)
    after.forces.copy_(forces)
    task.teamwork.effort.copy_(stand_in.contact_force[..., 0].clamp(min=0.0))
    rewards_found, ended = planar.judge(state, next_state)
    outcome = task.evaluate(after, before)
    torch.testing.assert_close(
        rewards_found,
        outcome.rewards.sum(0),
        rtol=1e-4,
        atol=1e-4 * float(outcome.rewards.abs().max()),
    )
    assert torch.equal(ended, outcome.terminations.any(0))
    assert 10 < int(ended.sum()) < NUM


def test_agents_see_in_predicted_states_what_they_would_in_true_ones():
    task = make_task(NUM, 3, object="tblock", more_observations=("own_velocity",))
    scene, _ = pushed_scenes(task)
    obs, state = task.observe(scene, task.memory)
    torch.testing.assert_close(planar_of(task).observe(state), obs, rtol=0.0, atol=2e-5)
    rebuilt = planar_of(task)._scene(state, torch.zeros(NUM))
    torch.testing.assert_close(task.observe(rebuilt, task.memory)[1], state, rtol=0.0, atol=2e-5)


def row(distance: float, *robots: tuple[float, float, float]) -> Tensor:
    """Return a state of an object and robots that look ahead, at (x, y) and moving ahead at a
    speed, all level.
    """
    parts = [[x, y, 0.0, 1.0, speed, 0.0, 0.0] for x, y, speed in robots]
    return tensor([[distance, 0.0, 1.0, *sum(parts, [])]])


FAR = ((-2.0, 1.0, 0.0), (-2.0, -1.0, 0.0))


def test_the_first_ending_within_a_decision_counts_and_no_reward_follows_it():
    task = make_task(
        decision_period=5,
        weights={"time": -1.0, "reach": 20.0, "progress": 100.0, "misalignment": 0.0},
    )
    # 1.03, 1.01, 0.99 and so on.
    rewards, ended = planar_of(task).judge(row(1.05, *FAR), row(0.95, *FAR))
    terms = {"time": -3.0, "reach": 20.0, "progress": 6.0}
    # From the box's corners.
    others = task.terms.rewards.weights["remoteness"] * 3 * (math.hypot(1.4, 0.4) - 0.35)
    assert rewards[0, 0].item() == pytest.approx(sum(terms.values()) + others, abs=1e-4)
    assert ended.tolist() == [True]
    rewards, ended = planar_of(task).judge(row(1.25, *FAR), row(1.15, *FAR))
    assert rewards[0, 0].item() == pytest.approx(-5.0 + 10.0 + others * 5 / 3, abs=1e-4)
    assert ended.tolist() == [False]


def test_nothing_of_the_task_is_changed_by_judging():
    task = make_task(NUM)
    before = task.state_dict()
    scene, _ = pushed_scenes(task)
    state = task.observe(scene, task.memory)[1]
    planar_of(task).judge(state, state)
    for name in ("collapse", "tangle"):
        assert torch.equal(before["memory"][name], task.state_dict()["memory"][name])
    assert torch.equal(before["memory"]["effort"], task.state_dict()["memory"]["effort"])


def test_what_slides_is_pushed_by_those_who_are_near_behind_it_and_move_with_it():
    planar = planar_of(make_task(1, 3, object="cuboid"))
    force = 0.325 * 4.0 * 9.81  # [N] the mean friction on the floor, mass, gravity
    behind = (-0.9, 0.0, 0.2)
    beside = (-0.9, 0.3, 0.2)
    still = (-0.9, 0.3, 0.0)
    ahead = (0.9, 0.0, 0.2)
    for robots, speed, expected in (
        ((behind, beside, ahead), 0.2, [0.5, 0.5, 0.0]),
        ((behind, still, ahead), 0.2, [1.0, 0.0, 0.0]),
        ((behind, beside, ahead), 0.025, [0.25, 0.25, 0.0]),  # half as fast as what always slides
        ((behind, (-1.2, 0.3, 0.2), ahead), 0.2, [1.0, 0.0, 0.0]),  # 0.6 m from the outline
        ((behind, beside, (0.9, 0.0, -0.2)), -0.2, [0.0, 0.0, -1.0]),
        ((behind, beside, ahead), 0.0, [0.0, 0.0, 0.0]),
    ):
        found = planar._scene(row(2.0, *robots), tensor([speed])).contact_force[0, :, 0] / force
        assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_predicted_headings_have_length_one_and_distances_are_not_negative():
    planar = planar_of(make_task())
    state = row(-0.1, *FAR)
    state[:, 1:3] = tensor([0.6, 1.6]) / 2.0
    state[:, 5:7] = tensor([3.0, 4.0])
    world, robots = planar.split(planar.tidy(state))
    assert world[0, 0].item() == 0.0
    assert robots[0, 0, 2:4].tolist() == pytest.approx([0.6, 0.8])
    assert world[0, 1:].norm().item() == pytest.approx(1.0)


@pytest.mark.parametrize("settings", [{"observation": "reference"}, {"state_type": "FP"}])
def test_other_states_are_not_predicted(settings):
    assert make_task(**settings).planar is None
