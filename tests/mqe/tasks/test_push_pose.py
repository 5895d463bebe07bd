"""Success by pose and rest: hand-computed headings and rest times."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from mqe.config import ConfigError
from mqe.tasks.push import PushCfg
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.terminations import DEFAULT_TERMINATIONS
from mqe.world.geometry import quat_from_yaw, wrap_to_pi
from mqe.world.objects import OBJECTS
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from tests.support.pushing import make_env, make_task
from tests.support.scenes import make_scene_state

DEGREE = math.pi / 180.0
POSE = {"success_radius": 0.1, "success_heading": 10.0 * DEGREE, "goal_heading": 0.0}


def at_goal(yaw: float, speed: float = 0.0, distance: float = 0.05) -> SceneState:
    return make_scene_state(
        tensor([[[-1.0, 0.0, 0.3], [-1.0, 1.0, 0.3]]]),
        object_pos=tensor([[0.0, 0.0, 0.25]]),
        object_quat=quat_from_yaw(tensor([yaw])),
        object_linvel=tensor([[speed, 0.0, 0.0]]),
        goal_pos=tensor([[distance, 0.0, 0.0]]),
    )


def test_the_heading_is_observed_where_it_is_asked_for_unless_settings_say_otherwise() -> None:
    pose = PushCfg(**POSE)
    assert pose.is_heading_observed
    assert not PushCfg(**POSE, observes_heading=False).is_heading_observed
    assert not PushCfg(goal_heading=0.0).is_heading_observed
    names = make_task(goal_heading=0.0, observes_heading=True).obs_names(0)
    assert names == make_task(**POSE).obs_names(0)
    with pytest.raises(ConfigError, match="task.observes_heading needs a goal heading"):
        PushCfg(observes_heading=True)


@pytest.mark.parametrize(
    ("name", "num_equal"),
    [("cuboid", 4), ("tblock", 1), ("cylinder", 0), ("beam", 2), ("tower", 4)],
)
def test_an_object_has_so_many_equal_headings(name: str, num_equal: int) -> None:
    assert OBJECTS[name].num_equal_headings == num_equal


@pytest.mark.parametrize(
    ("name", "yaw", "error"),
    [
        ("tblock", 30.0, -30.0),
        ("tblock", -170.0, 170.0),
        ("beam", 170.0, 10.0),
        ("beam", 60.0, -60.0),
        ("cuboid", 80.0, 10.0),
        ("cuboid", -20.0, 20.0),
        ("cylinder", 50.0, 0.0),
    ],
)
def test_the_heading_error_is_that_of_the_nearest_equal_heading(name, yaw, error) -> None:
    task = make_task(object=name, **POSE)
    features = SceneFeatures(at_goal(yaw * DEGREE), task.constants)
    assert features.heading_error.item() == pytest.approx(error * DEGREE, abs=1e-5)
    folded = features.heading_error.item() * OBJECTS[name].num_equal_headings
    sine, cosine = features.heading_error_axes[0].tolist()
    assert (sine, cosine) == pytest.approx((math.sin(folded), math.cos(folded)), abs=1e-5)


def test_every_shape_has_equal_headings_of_its_own() -> None:
    shapes = [OBJECTS[name] for name in ("tblock", "beam", "cuboid")]
    cfg = PushCfg(observation="sets", shapes="drawn", **POSE)
    constants = PushConstants(cfg, 2, shapes=shapes)
    yaw = tensor([80.0, 170.0, 80.0]) * DEGREE
    expected = tensor([-80.0, 10.0, 10.0]) * DEGREE
    heading = torch.zeros(3)
    torch.testing.assert_close(constants.heading_error(yaw, heading), expected, rtol=0, atol=1e-5)
    twice = constants.heading_error(torch.cat((yaw, -yaw)), torch.zeros(6))
    torch.testing.assert_close(twice, torch.cat((expected, -expected)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("yaw", "distance", "is_success"), [(9.0, 0.05, 1.0), (11.0, 0.05, 0.0), (9.0, 0.11, 0.0)]
)
def test_success_asks_for_place_and_heading(yaw, distance, is_success) -> None:
    task = make_task(object="tblock", weights={"reach": 1.0}, **POSE)
    state = at_goal(yaw * DEGREE, distance=distance)
    outcome = task.evaluate(state, state)
    assert outcome.terminations[DEFAULT_TERMINATIONS.index("success")].item() == is_success
    obs, critic_state = task.observe(state, task.memory)
    assert obs.shape[-1] == make_task(object="tblock").spec.obs_size + 2
    assert critic_state.shape[-1] == make_task(object="tblock").spec.state_size + 2


def test_success_asks_for_rest_without_interruption() -> None:
    task = make_task(object="cuboid", success_rest_s=4 * STEP_DT)
    task.begin(torch.ones(1, dtype=torch.bool))
    success = DEFAULT_TERMINATIONS.index("success")

    def steps(*speeds: float) -> list[bool]:
        ends = []
        for speed in speeds:
            state = at_goal(0.0, speed)
            ends.append(bool(task.evaluate(state, state).terminations[success]))
        return ends

    assert steps(0.0, 0.01, 0.0) == [False] * 3
    assert steps(0.03) == [False]  # not at rest: the time begins anew
    assert steps(0.0, 0.0, 0.0, 0.0) == [False, False, False, True]


def test_time_at_rest_is_saved() -> None:
    task = make_task(object="cuboid", success_rest_s=1.0)
    state = at_goal(0.0)
    task.evaluate(state, state)
    other = make_task(object="cuboid", success_rest_s=1.0)
    other.load_state_dict(task.state_dict())
    assert other.state_dict()["memory"]["rest"].item() == pytest.approx(STEP_DT)


def test_turning_to_the_goals_heading_is_rewarded() -> None:
    task = make_task(object="tblock", weights={"turn": 1.0}, rewards="default", **POSE)
    number = task.names.rewards.index("turn")
    outcome = task.evaluate(at_goal(20.0 * DEGREE), at_goal(25.0 * DEGREE))
    assert outcome.rewards[number, 0, 0].item() == pytest.approx(5.0 * DEGREE, abs=1e-5)


def test_a_heading_without_a_goal_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="task.goal_heading=0"):
        PushCfg(success_heading=0.2)


def pose_env(num_envs: int, **settings):
    """Return worlds with T-blocks and a goal heading in the robots' observations."""
    given = {"object": "tblock", "goal_heading": 0.5, "observes_heading": True}
    return make_env(num_envs, **(given | settings))


def observed_error(env, obs):
    """Return the first robot's observed heading error (N,)."""
    names = env.task.obs_names(0)
    start = names.index("heading_error_sin")
    sine = obs[:, 0, start]
    cosine = obs[:, 0, start + 1]
    return torch.atan2(sine, cosine)


FORMS = pytest.mark.parametrize("observation", ["sincos", "sets"])


@FORMS
def test_every_world_has_the_heading_that_was_set_last(observation) -> None:
    task = make_task(3, object="beam", observation=observation, **POSE)
    one = at_goal(30.0 * DEGREE)
    state = one.like(one.rows.expand(-1, 3, *one.rows.shape[2:]).contiguous())
    heading = tensor([35.0, 190.0, 90.0]) * DEGREE
    task.set_goal_heading(heading, tensor([True, True, False]))
    expected = tensor([5.0, -20.0, -30.0]) * DEGREE  # a beam looks the same after half a turn
    torch.testing.assert_close(task.heading_error(state.object_yaw), expected, rtol=0, atol=1e-5)
    for features in (
        task.scene_features(state, task.memory),
        task.step_features(state, state),
    ):
        torch.testing.assert_close(features.heading_error, expected, rtol=0, atol=1e-5)
    step = task.step_features(state, state)
    torch.testing.assert_close(step.prev_heading_error, expected, rtol=0, atol=1e-5)
    assert step.is_at_goal.tolist() == [True, False, False]

    task.begin(tensor([False, True, False]))
    expected = tensor([5.0, -30.0, -30.0]) * DEGREE
    torch.testing.assert_close(task.heading_error(state.object_yaw), expected, rtol=0, atol=1e-5)
    task.set_goal_heading(tensor([0.0, 0.0, 30.0]) * DEGREE, tensor([False, False, True]))
    assert task.step_features(state, state).is_at_goal.tolist() == [True, False, True]


@FORMS
def test_a_pose_from_outside_is_that_of_the_settings_with_the_same_heading(observation) -> None:
    settings = {"success_heading": 0.6, "weights": {"turn": 2.0, "reach": 1.0}}
    settings |= {"observation": observation, "decision_period": 5}
    led = pose_env(6, **settings)
    given = pose_env(6, goal_heading=-2.0, **settings)
    led.reset()
    given.reset()
    goal = led.state.object_pos[:, :2] + tensor([0.0, 3.0])
    heading = torch.full((6, 1), -2.0)
    obs_and_state = led.set_goal(torch.cat((goal, heading), dim=1))
    theirs = given.set_goal(goal)
    assert torch.equal(obs_and_state[0], theirs[0])
    assert torch.equal(obs_and_state[1], theirs[1])
    generator = torch.Generator().manual_seed(0)
    for k in range(12):
        if k == 8:
            led.set_goal(led.state.object_pos[:, :2])  # the heading stays
            given.set_goal(given.state.object_pos[:, :2])
        actions = 2.0 * torch.rand(6, 2, 3, generator=generator) - 1.0
        result = led.step(actions)
        there = given.step(actions)
        for name in ("final_obs", "final_state", "reward", "terminated"):
            assert torch.equal(getattr(result, name), getattr(there, name)), (k, name)
        if result.done.any():
            break
    # Some objects have the heading, and others have not.
    assert 0 < int(result.terminated[:, 0].sum()) < 6
    led.close()
    given.close()


@FORMS
def test_a_heading_holds_until_the_episode_ends(observation) -> None:
    env = pose_env(3, episode_length_s=0.06, observation=observation)
    before, _ = env.reset()
    yaw = env.state.object_yaw.clone()
    goal = tensor([[1.0, 2.0, 0.9], [1.0, 2.0, 2.5], [math.nan, 0.0, 0.0]])
    obs, _ = env.set_goal(goal, tensor([True, True, False]))
    headings = tensor([0.9, 2.5, 0.5])
    torch.testing.assert_close(observed_error(env, obs), wrap_to_pi(headings - yaw))
    assert torch.equal(obs[2], before[2])
    env.step(torch.zeros(3, 2, 3))
    obs, _ = env.set_goal(tensor([[0.0, 4.0], [0.0, 4.0], [0.0, 4.0]]))
    torch.testing.assert_close(observed_error(env, obs), wrap_to_pi(headings - yaw))
    env.step(torch.zeros(3, 2, 3))
    step = env.step(torch.zeros(3, 2, 3))
    assert step.truncated.all()
    # The last observation shows the heading that was set, the first one that of the settings.
    last = observed_error(env, step.final_obs)
    torch.testing.assert_close(last, wrap_to_pi(headings - yaw), rtol=0, atol=1e-2)
    first = observed_error(env, step.obs)
    torch.testing.assert_close(first, wrap_to_pi(0.5 - env.state.object_yaw))
    env.set_goal(goal, tensor([True, True, False]))
    env.step(torch.zeros(3, 2, 3))
    env.restart(tensor([True, False, False]))
    assert env.task.goal_heading.tolist() == [0.5, 2.5, 0.5]
    env.reset()
    assert env.task.goal_heading.tolist() == [0.5] * 3
    env.close()


def test_a_heading_from_outside_pays_nothing_by_itself_and_keeps_no_gradient() -> None:
    env = pose_env(2, weights={"turn": 1.0})
    env.reset()
    env.step(torch.zeros(2, 2, 3))
    goal = tensor([[1.0, 2.0, 0.9], [1.0, 2.0, 2.5]], requires_grad=True)
    env.set_goal(goal)
    assert env.task.goal_heading.tolist() == pytest.approx([0.9, 2.5])
    assert not env.task.memory.requires_grad
    assert env.step(torch.zeros(2, 2, 3)).info["reward/turn"].abs().max() < 1e-3
    env.close()


def test_goals_without_a_heading_and_headings_without_a_value_are_refused() -> None:
    env = make_env(2)
    env.reset()
    with pytest.raises(ConfigError, match="task.goal_heading=0, or give only x and y"):
        env.set_goal(torch.zeros(2, 3))
    env.close()
    env = pose_env(2)
    env.reset()
    with pytest.raises(ValueError, match=r"\(2, 3\) \(x, y and heading\), not \(2, 4\)"):
        env.set_goal(torch.zeros(2, 4))
    goal = tensor([[1.0, 2.0, 0.0], [1.0, 2.0, math.inf]])
    with pytest.raises(ValueError, match="goal must be finite"):
        env.set_goal(goal)
    assert env.task.goal_heading.tolist() == [0.5, 0.5]
    env.set_goal(goal, tensor([True, False]))
    assert env.task.goal_heading.tolist() == [0.0, 0.5]
    env.close()


@FORMS
def test_the_heading_in_force_is_saved_beside_an_unchanged_roster(observation) -> None:
    env = pose_env(3, observation=observation)
    env.reset()
    env.step(torch.zeros(3, 2, 3))
    obs, state = env.set_goal(tensor([[1.0, 2.0, 0.9]]).expand(3, -1), tensor([True, True, False]))
    saved = env.state_dict()
    other = pose_env(3, observation=observation)
    other.reset()
    resumed = other.load_state_dict(saved)
    assert torch.equal(resumed[0], obs)
    assert torch.equal(resumed[1], state)
    assert other.task.goal_heading.tolist() == pytest.approx([0.9, 0.9, 0.5])

    # A state of a version whose goals did not turn.
    older = saved["task"]["memory"].copy()
    del older["goal_heading"]
    if observation == "sets":
        assert torch.equal(older["roster"], torch.ones(3, 6))
    other.reset()
    other.load_state_dict(saved | {"task": saved["task"] | {"memory": older}})
    assert other.task.goal_heading.tolist() == [0.5] * 3
    env.close()
    other.close()


def test_a_heavier_object_has_the_same_shape() -> None:
    heavy = OBJECTS["tblock"].with_mass(12.0)
    assert heavy.mass == pytest.approx(12.0)
    assert [geom.mass for geom in heavy.geoms] == pytest.approx([8.0, 4.0])
    assert heavy.outline == OBJECTS["tblock"].outline
