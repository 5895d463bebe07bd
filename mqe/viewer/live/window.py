"""A player in MuJoCo's native window, driven by keys."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import glfw
import mujoco
import mujoco.viewer

from mqe.config import ConfigError
from mqe.viewer.live.live_view import LiveView, copy_live_state, drawn_lines, live_model
from mqe.viewer.live.player import Player
from mqe.viewer.meshes import NO_MESHES, Meshes

KEYS = (
    "space: pause   right: step   up, down: speed   enter: next episode   Y: next policy\n"
    "home: reset view   page up, down: other world   E: cost field   F: contact forces"
)
# GLFW's numbers
_SPACE = 32
_ENTER = 257
_RIGHT = 262
_DOWN = 264
_UP = 265
_PAGE_UP = 266
_PAGE_DOWN = 267
_HOME = 268
_NAP_S = 0.05  # [s] between two looks at a window that is about to open
_ENDING_S = 5.0  # [s] for a window to open or to close, once a signal came
_FASTEST = 4.0
_SLOWEST = 0.125


def has_display() -> bool:
    """Return whether a window can be opened on this machine."""
    return not sys.platform.startswith("linux") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def show(player: Player, meshes: Meshes = NO_MESHES) -> list[str]:
    """Show a player until it has played its episodes or the window is closed; return the outcomes.

    Raises ConfigError where no window can be opened.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all that GLFW says is that it failed
        if not glfw.init():  # MuJoCo would end the process
            raise ConfigError(
                "no window can be opened on this display; --web serves a page instead"
            )
    model = live_model(player.env.scene, meshes)
    shown = mujoco.MjData(model)
    wants_reset = threading.Event()

    def on_key(key: int) -> None:
        if key == _HOME:
            wants_reset.set()
        else:
            press(player, key)

    with _opened(model, shown, on_key) as handle:
        return _show_in(handle, player, model, shown, wants_reset)


@contextmanager
def _opened(
    model: mujoco.MjModel, shown: mujoco.MjData, on_key: Callable[[int], None]
) -> Iterator[mujoco.viewer.Handle]:
    """Open a window, and at the end wait until its thread has ended.

    A thread that still draws while the process ends crashes it, or holds it up. The window opens in
    a thread of its own, so that a signal is noticed meanwhile.
    """
    others = set(threading.enumerate())
    handles: list[mujoco.viewer.Handle] = []
    errors: list[Exception] = []

    def launch() -> None:
        try:
            handles.append(
                mujoco.viewer.launch_passive(
                    model, shown, key_callback=on_key, show_left_ui=False, show_right_ui=False
                )
            )
        except (RuntimeError, mujoco.FatalError) as error:
            errors.append(error)

    launcher = threading.Thread(target=launch, daemon=True)
    launcher.start()
    try:
        while launcher.is_alive():
            launcher.join(_NAP_S)
        if errors:
            raise ConfigError(f"no window can be opened ({errors[0]}); --web serves a page instead")
        yield handles[0]
    finally:
        launcher.join(_ENDING_S)
        for handle in handles:
            handle.close()
        for thread in threading.enumerate():
            if thread not in others and thread is not launcher:
                thread.join(_ENDING_S)


def _show_in(
    handle: mujoco.viewer.Handle,
    player: Player,
    model: mujoco.MjModel,
    shown: mujoco.MjData,
    wants_reset: threading.Event,
) -> list[str]:
    """Show a player in an open window; return the outcomes."""
    camera = handle.cam
    scene = handle.user_scn
    assert scene is not None
    view = LiveView(model, player)
    view.reset(camera)

    def look(data: mujoco.MjData) -> bool:
        if not handle.is_running():
            return False
        with handle.lock():
            copy_live_state(model, data, shown)
            if wants_reset.is_set():
                wants_reset.clear()
                view.reset(camera)
            viewport = handle.viewport
            if viewport is None:  # the window has just gone
                return False
            view.aim(shown, camera, viewport.width / max(viewport.height, 1))
            lines = drawn_lines(player, shown, True, True)
            scene.ngeom = len(lines)
            for line, geom in zip(lines, scene.geoms, strict=False):
                line.draw(geom)
        controls = player.controls
        status = f"{controls.policy}   episode {player.episode}   {player.time_s:.2f} s"
        if player.env.num_envs > 1:
            status = f"world {player.world + 1} of {player.env.num_envs}   {status}"
        status += f"{'   paused' if controls.is_paused else ''}\n{player.note}"
        top = mujoco.mjtGridPos.mjGRID_TOPLEFT
        bottom = mujoco.mjtGridPos.mjGRID_BOTTOMLEFT
        handle.set_texts([(None, int(top), status, ""), (None, int(bottom), KEYS, "")])
        handle.sync()
        return True

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
    elif key == _PAGE_UP:
        controls.world = (controls.world + 1) % player.env.num_envs
    elif key == _PAGE_DOWN:
        controls.world = (controls.world - 1) % player.env.num_envs
    elif key == ord("E") and player.can_plan:
        controls.shows_field = not controls.shows_field
    elif key == ord("Y"):
        names = list(player.policies)
        controls.policy = names[(names.index(controls.policy) + 1) % len(names)]
