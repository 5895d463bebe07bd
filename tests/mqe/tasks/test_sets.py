"""Observations as sets: one size for every team, no robot's number, masks, mirror images."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from mqe.config import ConfigError, build
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg, PushTask
from mqe.vec_env import EntityBlock
from mqe.world.objects import OBJECTS, Footprint
from mqe.world.state import SceneState
from tests.mqe.tasks.test_mirror import image_of, scenes
from tests.support.pushing import make_task
from tests.support.rounding import FEW_STEPS
from tests.support.scenes import make_scene_state


def entities(vector: Tensor, blocks: tuple[EntityBlock, ...], kind: str) -> Tensor:
    """Return the entities (..., E, K) of one kind in flat vectors (..., O)."""
    block = next(block for block in blocks if block.kind == kind)
    return vector[..., block.start : block.end].unflatten(-1, (block.num_entities, block.size))


def observed(task: PushTask, state: SceneState, kind: str) -> Tensor:
    obs, _ = task.observe(state, task.memory)
    return entities(obs, task.spec.obs_sets, kind)


def test_every_team_up_to_eight_robots_has_observations_of_one_size():
    for num_agents in range(1, 9):
        spec = make_task(1, num_agents, observation="sets").spec
        assert (spec.obs_size, spec.state_size, spec.presence) == (88, 113, 0)
        assert spec.obs_sets == (
            EntityBlock("teammates", 5, 7, 5),
            EntityBlock("outline", 40, 16, 3),
        )
        assert spec.state_sets == (
            EntityBlock("outline", 1, 16, 3),
            EntityBlock("robots", 49, 8, 8),
        )
    names = make_task(1, 2, observation="sets").obs_names(0)
    assert names[:6] == (
        "present",
        "goal_x",
        "goal_y",
        "object_x",
        "object_y",
        "teammates0_present",
    )
    assert len(names) == 88
    assert make_task(1, 2).spec.obs_sets == ()
    assert make_task(1, 2).spec.presence is None


@pytest.mark.parametrize(
    ("settings", "num_agents", "message"),
    [
        ({"observation": "sets", "state_type": "FP"}, 2, "task.state_type: FP"),
        ({"entity_dropout": 0.5}, 2, "task.entity_dropout=0.5 .* task.observation=sets"),
        ({"observation": "sets"}, 9, "env.num_agents=9: .* room for 8 robots"),
    ],
)
def test_settings_that_contradict_sets_are_refused(settings, num_agents, message):
    with pytest.raises(ConfigError, match=message):
        make_task(1, num_agents, **settings)


def test_the_numbers_of_two_robots_and_a_cuboid():
    """Robot 0 is at the origin and faces along y. Robot 1 is 2 m along x, the object 3 m
    along y.
    """
    half = math.sqrt(0.5)
    state = make_scene_state(
        tensor([[[0.0, 0.0, 0.3], [2.0, 0.0, 0.3]]]),
        robot_quat=tensor([[[half, 0.0, 0.0, half], [1.0, 0.0, 0.0, 0.0]]]),
        object_pos=tensor([[0.0, 3.0, 0.3]]),
        object_quat=tensor([[1.0, 0.0, 0.0, 0.0]]),
        goal_pos=tensor([[0.0, 5.0, 0.0]]),
    )
    task = make_task(1, 2, observation="sets")
    obs, critic = task.observe(state, task.memory)
    assert obs[0, 0, :5].tolist() == pytest.approx([1.0, 5.0, 0.0, 3.0, 0.0], abs=FEW_STEPS)
    others = observed(task, state, "teammates")[0, 0]
    assert others[0].tolist() == pytest.approx([1.0, 0.0, -2.0, -1.0, 0.0], abs=FEW_STEPS)
    assert not others[1:].any()  # room for further robots
    outline = observed(task, state, "outline")[0, 0]
    assert float(outline[:, 1].min()) == pytest.approx(2.4, abs=1e-5)  # the near face
    assert float(outline[:, 1].max()) == pytest.approx(3.6, abs=1e-5)
    team = entities(critic, task.spec.state_sets, "robots")[0]
    # The critic's frame looks along the world's y: a robot on the world's x axis is on its right.
    assert team[:2, :3].flatten().tolist() == pytest.approx(
        [1.0, -3.0, 0.0, 1.0, -3.0, -2.0], abs=1e-5
    )
    assert not team[2:].any()


def test_robots_that_change_their_numbers_change_nothing_that_the_others_observe():
    torch.manual_seed(0)
    state, _ = scenes("cuboid", 4)
    order = torch.tensor([0, 3, 1, 2])
    swapped = state.like(state.rows.clone())
    for name in ("robot_pos", "robot_quat", "robot_linvel"):
        getattr(swapped, name)[:] = getattr(state, name)[:, order]
    task = make_task(50, 4, observation="sets")
    observed_sets = observed(task, state, "teammates")[:, 0]
    there = observed(task, swapped, "teammates")[:, 0]
    assert not torch.allclose(observed_sets, there)
    torch.testing.assert_close(sorted_by_place(observed_sets), sorted_by_place(there))


def sorted_by_place(others: Tensor) -> Tensor:
    order = others[..., 1].argsort(dim=1)
    return others.gather(1, order.unsqueeze(-1).expand_as(others))


@pytest.mark.parametrize(
    "kind", [name for name, obj in OBJECTS.items() if obj.mirror_signs is not None]
)
def test_sets_of_a_mirrored_scene_are_the_mirror_images(kind):
    torch.manual_seed(0)
    task = make_task(50, 3, object=kind, observation="sets")
    (obs, state), (there, state_there) = (task.observe(x, task.memory) for x in scenes(kind, 3))
    image = image_of(task)
    assert image.state is not None
    torch.testing.assert_close(image.obs(obs), there, rtol=0.0, atol=2e-5)
    torch.testing.assert_close(image.state(state), state_there, rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("kind", OBJECTS)
def test_points_of_the_outline_lie_on_it(kind):
    footprint = Footprint(OBJECTS[kind])
    points = footprint.points[0]
    torch.testing.assert_close(
        footprint.distance(points), torch.zeros(16), rtol=0.0, atol=FEW_STEPS
    )
    assert bool((footprint.distance(1.01 * points) > 0.0).all())


@pytest.mark.parametrize(
    ("way", "from_start", "at_end"),
    [("dead", True, False), ("absent", False, False), ("late", False, True)],
)
def test_robots_that_are_dead_absent_or_late_are_in_no_set(way, from_start, at_end):
    env_cfg = build(
        EnvCfg,
        {"num_envs": 4, "num_agents": 3, "randomize": {"lost_robots": [way], "lost_time": 0.1}},
        "env",
    )
    task = PushCfg(observation="sets", spawn="separated")
    env = make_env(env_cfg, SimCfg(name="mujoco", device="cpu", num_threads=1), task, 0)
    obs, state = env.reset()
    for is_there in (from_start, from_start, at_end):
        takes_part = obs[..., env.spec.presence]
        assert takes_part.sum(dim=1).tolist() == [2.0 + is_there] * 4
        others = entities(obs, env.spec.obs_sets, "teammates")[..., 0].sum(dim=2)
        assert torch.equal(others, takes_part.sum(dim=1, keepdim=True) - takes_part)
        team = entities(state, env.spec.state_sets, "robots")
        assert torch.equal(team[:, :3, 0], takes_part)
        assert not team[team[..., 0] == 0.0].any()
        for _ in range(3):
            step = env.step(torch.zeros(4, 3, 3))
        obs = step.obs
        state = step.state
    env.close()


def test_dropout_hides_a_share_of_the_others_for_a_whole_episode():
    task = make_task(200, 4, observation="sets", entity_dropout=0.25)
    everywhere = torch.ones(200, dtype=torch.bool)
    state, _ = scenes("cuboid", 4)
    state = state.like(state.rows.repeat(1, 4))
    shares = []
    for episode in (0, 1):
        task.layout(torch.full((200,), episode))
        task.begin(everywhere & (torch.arange(200) < 200 - episode))
        shares.append(observed(task, state, "teammates")[:, :, :3, 0])
    assert float(shares[0].mean()) == pytest.approx(0.75, abs=0.03)
    assert not torch.equal(shares[0], shares[1])
    assert torch.equal(shares[0][199], shares[1][199])  # a world whose episode did not end
    team = entities(task.observe(state, task.memory)[1], task.spec.state_sets, "robots")
    assert bool((team[:, :4, 0] == 1.0).all())  # the critic sees all
