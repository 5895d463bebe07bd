"""The push task's symmetries besides the mirror: an object turned to an equivalent heading, and
renumbered robots.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from harl_mapush.learning.off_policy.replay_buffer import Batch
from harl_mapush.learning.off_policy.symmetric_batches import Images
from mqe.tasks.push import PushCfg
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.rewards import REWARDS
from mqe.tasks.push.task import PushTask
from mqe.tasks.terms import ObservationTerm
from mqe.vec_env import TeamImage
from mqe.world.geometry import quat_from_yaw
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS, Robots
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from tests.mqe.tasks.test_mirror import scenes
from tests.support.pushing import CPU, Stander, make_env, make_task

# By turns
NUM_IMAGES = {
    "cuboid": 4,
    "cylinder": 4,
    "tower": 4,
    "tank": 4,
    "beam": 2,
    "girder": 2,
    "pontoon": 2,
    "tblock": 1,
    "loaded": 1,
}


def symmetry(task: PushTask, name: str) -> TeamImage:
    image = getattr(task.symmetries, name)
    assert image is not None
    assert image.state is not None
    return image


def turned(quat: Tensor, kind: str) -> Tensor:
    """Return orientations (..., 4) times the turn to the next equivalent heading."""
    half = math.pi / NUM_IMAGES[kind]
    cos = math.cos(half)
    sin = math.sin(half)
    w, x, y, z = quat.unbind(-1)
    return torch.stack(
        (w * cos - z * sin, x * cos + y * sin, y * cos - x * sin, w * sin + z * cos), -1
    )


def flat_scenes(kind: str) -> tuple[SceneState, SceneState]:
    """Return 50 random three-robot worlds, twice, with upright objects."""
    pair = scenes(kind, 3)[0], scenes(kind, 3)[0]
    for state in pair:
        state.object_quat[:] = quat_from_yaw(4.0 * torch.randn(50))
    return pair


def image_of(state: SceneState, name: str, kind: str) -> SceneState:
    """Return the scene with a turned object, or with each robot's number shifted by one."""
    image = state.like(state.rows.clone())
    if name == "turn":
        image.object_quat[:] = turned(state.object_quat, kind)
        return image
    for part in ("robot_pos", "robot_quat", "robot_linvel", "robot_angvel_b"):
        getattr(image, part)[:] = getattr(state, part).roll(-1, 1)
    num_agents = state.num_robots
    forces = state.forces.unflatten(1, (-1, 3))
    pairs = list(combinations(range(num_agents), 2))
    order = [(k + 1) % num_agents for k in range(num_agents)]
    for i, j in pairs:
        partners = (i + 1) % num_agents, (j + 1) % num_agents
        order.append(num_agents + pairs.index((min(partners), max(partners))))
    image.forces[:] = forces[:, order].flatten(1)
    return image


@pytest.mark.parametrize("name", ["turn", "numbers"])
@pytest.mark.parametrize("how", ["EP", "FP", "sets"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_agents_and_critic_see_the_image_of_a_scene_like_theirs(kind, how, name):
    torch.manual_seed(0)
    settings: dict[str, Any] = {"observation": "sets"} if how == "sets" else {"state_type": how}
    settings["more_observations"] = ("own_velocity", "object_velocity")
    if how != "FP":
        settings["more_state"] = ("object_velocity",)
    task = make_task(50, 3, object=kind, goal_heading=0.3, **settings)
    original, _ = flat_scenes(kind)
    there = image_of(original, name, kind)
    (obs, state), (obs_there, state_there) = (
        task.observe(x, task.memory) for x in (original, there)
    )
    image = symmetry(task, name)
    assert image.state is not None
    shown = image.state(state)
    if how == "FP":
        shown = shown.roll(-image.shift, 1)
    torch.testing.assert_close(image.obs(obs).roll(-image.shift, 1), obs_there, rtol=0.0, atol=2e-5)
    torch.testing.assert_close(shown, state_there, rtol=0.0, atol=2e-5)
    looks_else = name == "numbers" or NUM_IMAGES[kind] > 1
    assert looks_else != bool((obs - obs_there).abs().amax() < 1e-4)


@pytest.mark.parametrize("name", ["turn", "numbers"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_rewards_and_endings_are_those_of_the_scene(kind, name):
    """All rewards. A turned object skips those of the nearest edge: a corner has two."""
    torch.manual_seed(0)
    is_left_out = {
        reward for reward in REWARDS if name == "turn" and reward.startswith(("ocb", "turned"))
    }
    weights = {reward: 1.0 for reward in REWARDS if reward not in is_left_out}
    weights["exception"] = -1.0
    outcomes = []
    pair = flat_scenes(kind)
    for state, prev in (pair, [image_of(x, name, kind) for x in pair]):
        task = make_task(50, 3, object=kind, goal_heading=0.3, weights=weights)
        outcomes.append(task.evaluate(state, prev))
    rewards = outcomes[0].rewards.roll(-symmetry(task, name).shift, 2)
    torch.testing.assert_close(rewards, outcomes[1].rewards, rtol=1e-4, atol=1e-4)
    assert torch.equal(outcomes[0].terminations, outcomes[1].terminations)


def test_a_recorded_transition_has_the_image_of_worlds_with_a_turned_box_and_swapped_robots():
    """Two robots run into the box in four worlds: as it is, turned, swapped, and both."""
    env = make_env(4, object="cuboid", decision_period=5)
    task = env.task
    assert isinstance(task, PushTask)
    env.reset()
    data = env.sim.data
    for robot, (y, yaw) in enumerate(((0.25, 0.15), (-0.4, 0.3))):
        heading = (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        data.qpos[:, 19 * robot :][:, :7] = tensor([-0.95 - 0.02 * robot, y, 0.28, *heading])
        data.qvel[:, 18 * robot :][:, :18] = tensor([1.0] + [0.0] * 17)
    data.qpos[:, 38:45] = data.qpos[:1, 38:45]
    data.qpos[:, 41:45] = tensor([1.0, 0.0, 0.0, 0.0])
    data.qpos[:, 7:19] = data.qpos[:, 26:38] = data.qpos[:1, 7:19]
    data.mocap_pos[:] = data.mocap_pos[:1].clone()
    for world in (1, 3):
        data.qpos[world, 41:45] = turned(data.qpos[0, 41:45], "cuboid")
    for world in (2, 3):
        for values, size in ((data.qpos, 19), (data.qvel, 18)):
            values[world, : 2 * size] = values[0, : 2 * size].view(2, size).flip(0).flatten()
    actions = torch.rand(4, 2, 3) * 0.2
    actions[1] = actions[0]
    actions[2:] = actions[:1].flip(1)
    env.step(actions)
    task.steps.nearest.fill_(torch.inf)  # of the worlds before they were set
    moved = data.qpos[0, 38:40].clone()
    step = env.step(actions)
    assert float((data.qpos[0, 38:40] - moved).norm()) > 0.01  # the box was pushed

    turn = symmetry(task, "turn")
    numbers = symmetry(task, "numbers")
    for world, done in ((1, (turn,)), (2, (numbers,)), (3, (turn, numbers))):
        obs = step.obs[0]
        state = step.state[0]
        reward = step.reward[0]
        for image in done:
            assert image.state is not None
            obs = image.obs(obs).roll(-image.shift, 0)
            state = image.state(state)
            reward = reward.roll(-image.shift, 0)
        torch.testing.assert_close(obs, step.obs[world], rtol=0.0, atol=1e-3)
        torch.testing.assert_close(state, step.state[world], rtol=0.0, atol=1e-3)
        torch.testing.assert_close(reward, step.reward[world], rtol=0.0, atol=2e-3)
    env.close()


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("kind", [name for name, obj in OBJECTS.items() if obj.mirror_signs])
def test_a_batch_shows_every_combination_of_symmetries_as_often(kind, state_type):
    torch.manual_seed(0)
    task = make_task(50, 3, object=kind, state_type=state_type)
    spec = task.spec
    views = 3 if state_type == "FP" else 1
    names = ("mirror", "turn", "numbers")
    mirror, turn, numbers = (symmetry(task, name) for name in names)
    images = Images((mirror, turn, numbers), spec, views, CPU)
    assert len(images) == 2 * NUM_IMAGES[kind] * 3

    batch = make_batch(2 * len(images) + 1, spec.obs_size, spec.state_size, views)
    seen = images(batch)
    assert torch.equal(seen.discount, batch.discount)
    last = len(images) - 1  # the transition itself
    for shown, plain in zip(seen, batch, strict=True):
        assert torch.equal(shown[last], plain[last])
    for one, two in zip(images(batch_of(batch, 0)), images(batch_of(batch, 1)), strict=True):
        assert one.shape == two.shape

    # Of one transition: the images that its rows show are all different, and those by hand.
    row = Batch(*[part[:1].expand(len(images), *part.shape[1:]) for part in batch])
    image_rows = images(row)
    by_hand = []
    for mirrors in range(2):
        for turns in range(NUM_IMAGES[kind]):
            for shift in range(3):
                obs = batch.obs[0]
                state = batch.state[0]
                actions = batch.actions[0]
                for image in (mirror,) * mirrors + (turn,) * turns + (numbers,) * shift:
                    assert image.state is not None
                    obs = image.obs(obs)
                    state = image.state(state)
                    actions = image.action(actions)
                agents = [part.roll(-shift, 0) for part in (obs, actions, batch.active[0])]
                of_views = [part.roll(-shift, 0) for part in (state, batch.returns[0])]
                by_hand.append(torch.cat([part.flatten() for part in agents + of_views]))
    parts = (
        image_rows.obs,
        image_rows.actions,
        image_rows.active,
        image_rows.state,
        image_rows.returns,
    )
    rows = torch.cat([part.flatten(1) for part in parts], 1)
    same = (rows.unsqueeze(1) == torch.stack(by_hand)).all(-1)
    assert torch.equal(same.sum(0), torch.ones(len(images), dtype=torch.int64))
    assert torch.equal(same.sum(1), torch.ones(len(images), dtype=torch.int64))


def make_batch(rows: int, obs_size: int, state_size: int, views: int) -> Batch:
    return Batch(
        torch.randn(rows, 3, obs_size),
        torch.randn(rows, views, state_size),
        torch.randn(rows, 3, 3),
        torch.rand(rows, 3),
        torch.randn(rows, views),
        torch.rand(rows),
        torch.randn(rows, 3, obs_size),
        torch.randn(rows, views, state_size),
    )


def batch_of(batch: Batch, row: int) -> Batch:
    return Batch(*[part[row : row + 1] for part in batch])


def test_what_is_unknown_has_no_image_and_what_differs_is_only_its_own(monkeypatch):
    assert make_task(observation="reference").symmetries.turn is None
    height = ObservationTerm(
        "height", lambda step: step.state.robot_pos[..., 2:], mirror_signs=(1.0,)
    )
    monkeypatch.setitem(OBSERVATIONS, "own_height", height)
    symmetries = make_task(more_observations=("own_height",)).symmetries
    assert symmetries.mirror is not None
    assert symmetries.turn is None
    assert symmetries.numbers is None
    turnable = dataclasses.replace(height, turn=lambda cfg, size: (range(size), (1.0,) * size))
    monkeypatch.setitem(OBSERVATIONS, "own_height", turnable)
    symmetries = make_task(more_observations=("own_height",)).symmetries
    assert symmetries.turn is not None
    assert symmetries.numbers is not None

    def num_images(task: PushTask, name: str) -> int:
        return len(Images((symmetry(task, name),), task.spec, 1, CPU))

    assert num_images(make_task(object_width=2.0), "turn") == 2  # no square any more
    assert num_images(make_task(rewards="published"), "turn") == 1  # it looks at the yaw itself
    drawn = make_task(observation="sets", shapes="drawn", spawn="separated")
    assert num_images(drawn, "turn") == 1  # every world has an object of its own
    mixed = Robots([ROBOTS["go1"], ROBOTS["go2"]])
    task = PushTask(PushCfg(), 1, mixed, Streams(0, 1, CPU), Stander())
    assert num_images(task, "numbers") == 1
    assert num_images(make_task(), "numbers") == 2
