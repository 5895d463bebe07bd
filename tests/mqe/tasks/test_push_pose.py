"""Success by pose and rest: hand-computed headings, and the time for which an object has rested."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from mqe.config import ConfigError
from mqe.tasks.push import PushCfg
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.terminations import DEFAULT_TERMINATIONS
from mqe.world.geometry import quat_from_yaw
from mqe.world.objects import OBJECTS
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from tests.support.pushing import make_task
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
    with pytest.raises(ConfigError, match="task.observes_heading needs the heading of the goal"):
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
    wanted = tensor([-80.0, 10.0, 10.0]) * DEGREE
    torch.testing.assert_close(constants.heading_error(yaw), wanted, rtol=0, atol=1e-5)
    twice = constants.heading_error(torch.cat((yaw, -yaw)))
    torch.testing.assert_close(twice, torch.cat((wanted, -wanted)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("yaw", "distance", "is_success"), [(9.0, 0.05, 1.0), (11.0, 0.05, 0.0), (9.0, 0.11, 0.0)]
)
def test_success_asks_for_place_and_heading(yaw, distance, is_success) -> None:
    task = make_task(object="tblock", weights={"reach": 1.0}, **POSE)
    state = at_goal(yaw * DEGREE, distance=distance)
    outcome = task.evaluate(state, state)
    assert outcome.terminations[DEFAULT_TERMINATIONS.index("success")].item() == is_success
    obs, critic_state = task.observe(state, task.memory)
    assert obs.shape[-1] == make_task(object="tblock").obs_sizes[0] + 2
    assert critic_state.shape[-1] == make_task(object="tblock").state_size + 2


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


def test_a_heavier_object_has_the_same_shape() -> None:
    heavy = OBJECTS["tblock"].with_mass(12.0)
    assert heavy.mass == pytest.approx(12.0)
    assert [geom.mass for geom in heavy.geoms] == pytest.approx([8.0, 4.0])
    assert heavy.outline == OBJECTS["tblock"].outline
