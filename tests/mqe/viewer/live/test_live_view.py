"""The camera of window and page: everything is in the picture, and the user may take it over."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest

from mqe.sim.simulator import snapshot
from mqe.viewer.camera import CAMERAS, MARGIN, camera_axes
from mqe.viewer.lines import trail
from mqe.viewer.live.live_view import LiveView, copy_live_state, live_model
from mqe.viewer.live.player import Player
from mqe.viewer.looks import shown_model
from mqe.world.objects import OBJECTS
from mqe.world.scene import build_scene
from tests.mqe.viewer.test_looks import rolled_out
from tests.support.pushing import make_env
from tests.support.rounding import FEW_STEPS

ASPECT = 16 / 9


class Shown:
    """The first world of an environment, seen by the view."""

    def __init__(self, num_envs: int = 1) -> None:
        env = make_env(num_envs)
        env.reset()
        self.player = Player(env, {"nobody": lambda: lambda obs: obs})
        self.model = live_model(env.scene)
        self.data = mujoco.MjData(self.model)
        self.view = LiveView(self.model, self.player)
        self.camera = mujoco.MjvCamera()
        self.view.reset(self.camera)
        copy_live_state(self.model, snapshot(env.sim, 0), self.data)

    def aim(self, covered: float = 0.0) -> None:
        self.view.aim(self.data, self.camera, ASPECT, covered)

    def places(self) -> np.ndarray:
        """Return the places x, y of robots, object and goal in the picture, in [-1, 1], and the
        margin around each (P, 3).
        """
        axes = camera_axes(self.camera.azimuth, self.camera.elevation)
        lookat = self.data.subtree_com[self.camera.trackbodyid]
        eye = lookat - self.camera.distance * axes[2]
        names = [*self.player.robots, "object", "goal"]
        rel = np.stack([self.data.body(name).xpos for name in names]) - eye
        seen = rel @ axes.T
        half_height = math.tan(math.radians(self.model.vis.global_.fovy) / 2)
        margin = MARGIN / (seen[:, 2:] * half_height)
        projected = seen[:, :2] / (seen[:, 2:] * half_height)
        projected[:, 0] /= ASPECT
        return np.concatenate((projected, margin), axis=1)


@pytest.mark.parametrize("covered", [0.0, 0.3])
def test_all_of_it_is_in_the_picture_beside_the_panel(covered: float) -> None:
    shown = Shown()
    shown.aim(covered)
    places = shown.places()
    left = -1.0 + 2.0 * covered
    assert (places[:, 0] - places[:, 2] / ASPECT >= left - FEW_STEPS).all()
    assert (places[:, 0] + places[:, 2] / ASPECT <= 1.0 + FEW_STEPS).all()
    assert (np.abs(places[:, 1]) + places[:, 2] <= 1.0 + FEW_STEPS).all()


def test_the_user_turns_and_zooms_until_the_view_is_reset() -> None:
    shown = Shown()
    shown.aim()
    fitting = shown.camera.distance
    shown.camera.azimuth += 40.0
    shown.camera.distance = 2.0
    shown.aim()
    shown.aim()
    assert shown.camera.azimuth == CAMERAS["follow"].azimuth + 40.0
    assert shown.camera.distance == 2.0
    shown.view.reset(shown.camera)
    shown.aim()
    assert shown.camera.azimuth == CAMERAS["follow"].azimuth
    assert shown.camera.distance == pytest.approx(fitting)


def test_the_camera_goes_back_when_something_leaves_the_picture_and_else_stays() -> None:
    shown = Shown()
    shown.aim()
    near = shown.camera.distance
    body = shown.model.body("goal").id
    there = shown.data.xpos[body].copy()
    shown.data.xpos[body] += (6.0, 6.0, 0.0)
    shown.aim()
    far = shown.camera.distance
    assert far > near
    shown.data.xpos[body] = there
    shown.aim()
    assert shown.camera.distance == far


def test_without_follow_the_camera_is_free() -> None:
    shown = Shown()
    shown.view.follows = False
    shown.aim()
    assert shown.camera.type == mujoco.mjtCamera.mjCAMERA_FREE


def test_the_camera_body_changes_nothing_of_the_physics() -> None:
    scene = build_scene(2, OBJECTS["cuboid"])
    model = live_model(scene)
    assert model.nbody == scene.model.nbody + 1
    assert np.array_equal(rolled_out(model), rolled_out(scene.model))  # to the last bit


def test_a_state_is_copied_around_the_camera_body() -> None:
    scene = build_scene(1, OBJECTS["cuboid"])
    data = mujoco.MjData(scene.model)
    data.qpos[0] = -1.5
    data.mocap_pos[0] = (1.0, 2.0, 0.0)
    data.xfrc_applied[1] = 3.0
    mujoco.mj_forward(scene.model, data)
    model = live_model(scene)
    shown = mujoco.MjData(model)
    copy_live_state(model, data, shown)
    assert np.array_equal(shown.xpos[:-1], data.xpos)
    assert np.array_equal(shown.xfrc_applied[:-1], data.xfrc_applied)


def test_numbers_for_a_renderer_are_in_the_scene_for_the_page_alone() -> None:
    scene = build_scene(1, None)
    assert shown_model(scene).nnumeric == scene.model.nnumeric
    assert live_model(scene, numbers={"light": 2.0}).numeric("light").data == 2.0


def test_a_trail_joins_the_points_over_the_floor_and_does_not_grow_for_ever() -> None:
    points = [np.array([0.1 * i, 0.0, 0.25]) for i in range(5)]
    lines = trail(points)
    assert len(lines) == 4
    assert lines[0].start.tolist() == [0.0, 0.0, 0.03]
    assert lines[3].end.tolist() == pytest.approx([0.4, 0.0, 0.03])
    assert trail([points[0]] * 9) == []  # it stood still
    assert len(trail(points * 1000)) < 250
