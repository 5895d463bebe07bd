"""The page's camera tracks the object with everything in the picture."""

from __future__ import annotations

from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
import torch

from mapush.extensions.studio import panel as panel_module
from mapush.extensions.studio.panel import Panel
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.sim.simulator import snapshot
from mqe.tasks.walking import WalkingCfg
from mqe.viewer.camera import camera_axes, half_picture, margins
from mqe.viewer.looks import shown_model
from mqe.viewer.player import Player
from tests.support.pushing import make_env as make_push_env
from tests.support.rounding import FEW_STEPS

SIZE = (1280, 720)  # [pixels]
ASPECT = (SIZE[0] - 340) / SIZE[1]  # beside the panel


def panel_of(env, monkeypatch: pytest.MonkeyPatch) -> Panel:
    """Return a panel on a page of ``SIZE`` with the present state."""
    size = SimpleNamespace(x=SIZE[0], y=SIZE[1])
    monkeypatch.setattr(panel_module.imgui, "GetIO", lambda: SimpleNamespace(DisplaySize=size))
    env.reset()
    made = Panel(Player(env, {"zero": lambda: lambda obs: torch.zeros(*obs.shape[:2], 3)}))
    model = shown_model(env.scene)
    data = mujoco.MjData(model)
    mujoco.mj_copyState(model, snapshot(env.sim, 0), data, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)
    camera = mujoco.MjvCamera()
    made.viewer = SimpleNamespace(
        model=model, data=data, camera=camera, camera_index=0, extra_geoms=[]
    )
    return made


def test_the_camera_tracks_the_object_with_everything_in_the_picture(monkeypatch) -> None:
    env = make_push_env(1)
    panel = panel_of(env, monkeypatch)
    panel.player.episode = 1
    viewer = panel.viewer
    camera = viewer.camera
    # A new model, and an episode without a state: the page shows other positions.
    starts = viewer.data.xpos.copy()
    viewer.data.xpos[:] = 0.0
    panel.on_model(None)
    panel.on_update(None)
    viewer.data.xpos[:] = starts
    panel.player.num_shown = 5
    panel.on_update(None)
    assert camera.type == mujoco.mjtCamera.mjCAMERA_TRACKING
    assert viewer.model.body(camera.trackbodyid).name == "object"
    names = [*panel.player.robots, "object", "goal"]
    axes = camera_axes(camera.azimuth, camera.elevation)
    points = np.stack([viewer.data.body(name).xpos for name in names])
    offset = points - viewer.data.body("object").xpos + camera.distance * axes[2]
    depth = offset @ axes[2]
    reach = np.abs(offset @ axes[:2].T) + margins(env.scene)[:, None]
    assert (reach <= depth[:, None] * half_picture(viewer.model, ASPECT) + FEW_STEPS).all()
    # The user moves the camera until the next episode.
    camera.distance = 2.0
    panel.on_update(None)
    assert camera.distance == 2.0
    panel.player.episode = 2
    panel.on_update(None)
    assert camera.distance > 2.0
    # A browser with a narrower page connects.
    wide = camera.distance
    panel_module.imgui.GetIO().DisplaySize.x = 600
    panel.on_update(None)
    assert camera.distance > wide
    env.close()


def test_without_an_object_the_camera_tracks_the_robot(walking, monkeypatch) -> None:
    env = make_env(EnvCfg(1, 1), SimCfg(name="mujoco", device="cpu"), WalkingCfg(), seed=1)
    panel = panel_of(env, monkeypatch)
    panel._aim()
    viewer = panel.viewer
    assert viewer.model.body(viewer.camera.trackbodyid).name == "robot0/trunk"
    env.close()


def test_a_page_without_a_scene_waits(monkeypatch) -> None:
    env = make_push_env(1)
    panel = panel_of(env, monkeypatch)
    panel.viewer.model = mujoco.MjSpec().compile()
    panel.player.episode = 1
    panel.on_update(None)
    assert panel.viewer.camera_index == 0
    env.close()
