"""A player in MuJoCo's native window, driven by keys."""

from __future__ import annotations

import os
import sys
import warnings

import glfw
import mujoco
import mujoco.viewer

from mqe.config import ConfigError
from mqe.viewer.arrows import command_arrows
from mqe.viewer.looks import copy_state, shown_model
from mqe.viewer.player import Player

KEYS = (
    "space: pause   right: step   up, down: speed   enter: next episode   Y: next policy   F: "
    "contact forces"
)
# GLFW's numbers
_SPACE = 32
_ENTER = 257
_RIGHT = 262
_DOWN = 264
_UP = 265
_FASTEST = 4.0
_SLOWEST = 0.125


def has_display() -> bool:
    """Return whether a window can be opened on this machine."""
    return not sys.platform.startswith("linux") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def show(player: Player) -> list[str]:
    """Show a player until it has played its episodes or the window is closed; return the outcomes.

    Raises ConfigError where no window can be opened.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all that GLFW says is that it failed
        if not glfw.init():  # MuJoCo would end the process
            raise ConfigError(
                "no window can be opened on this display; --web serves a page instead"
            )
    model = shown_model(player.env.scene)
    shown = mujoco.MjData(model)
    try:
        handle = mujoco.viewer.launch_passive(
            model,
            shown,
            key_callback=lambda key: press(player, key),
            show_left_ui=False,
            show_right_ui=False,
        )
    except (RuntimeError, mujoco.FatalError) as error:
        raise ConfigError(
            f"no window can be opened ({error}); --web serves a page instead"
        ) from None
    bodies = [model.body(name).id for name in player.robots]
    camera = handle.cam
    scene = handle.user_scn
    assert scene is not None
    camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    camera.trackbodyid = bodies[0] if player.env.scene.object is None else model.body("object").id
    camera.azimuth = 125.0
    camera.elevation = -32.0
    camera.distance = 6.0

    def look(data: mujoco.MjData) -> bool:
        if not handle.is_running():
            return False
        with handle.lock():
            copy_state(model, data, shown)
            scene.ngeom = 0
            for body, command in zip(bodies, player.commands, strict=False):
                for arrow in command_arrows(shown.xpos[body], shown.xmat[body], command):
                    arrow.draw(scene.geoms[scene.ngeom])
                    scene.ngeom += 1
        controls = player.controls
        status = f"{controls.policy}   episode {player.episode}   {player.time_s:.2f} s"
        status += f"{'   paused' if controls.is_paused else ''}\n{player.note}"
        top = mujoco.mjtGridPos.mjGRID_TOPLEFT
        bottom = mujoco.mjtGridPos.mjGRID_BOTTOMLEFT
        handle.set_texts([(None, int(top), status, ""), (None, int(bottom), KEYS, "")])
        handle.sync()
        return True

    with handle:
        return player.run(look)


def press(player: Player, key: int) -> None:
    """Handle a key."""
    controls = player.controls
    if key == _SPACE:
        controls.is_paused = not controls.is_paused
    elif key == _RIGHT:
        controls.is_paused = True
        controls.num_steps += 1
    elif key == _UP:
        controls.speed = min(2.0 * controls.speed, _FASTEST)
    elif key == _DOWN:
        controls.speed = max(0.5 * controls.speed, _SLOWEST)
    elif key == _ENTER:
        controls.is_next = True
    elif key == ord("Y"):
        names = list(player.policies)
        controls.policy = names[(names.index(controls.policy) + 1) % len(names)]
