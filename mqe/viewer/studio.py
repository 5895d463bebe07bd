"""A player in MuJoCo's Studio, as a page that only this machine can open."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mujoco
import numpy as np
import torch

from mqe.config import ConfigError
from mqe.viewer.arrows import command_arrows
from mqe.viewer.looks import copy_state, shown_model
from mqe.viewer.player import Player

try:
    from mujoco.studio import (
        launch_thread,
        messages,
        plugin,
        ux,  # pyright: ignore[reportAttributeAccessIssue]
        viewer_protocol,
        viewer_utils,
    )
    from mujoco.studio.app import inputs
    from mujoco.studio.dear_imgui import dear_imgui as imgui
    from mujoco.studio.implot import implot
except ImportError as error:
    raise ConfigError(
        f"MuJoCo's Studio is missing ({error}); pip install 'mujoco>=4.0' brings it"
    ) from None

HOST = "127.0.0.1"
PORTS = range(8080, 8180)  # tried in turn where none is asked for
_PANEL_WIDTH = 340  # pixels
_FIXED = (
    int(imgui.WindowFlags.NoTitleBar)
    | int(imgui.WindowFlags.NoMove)
    | int(imgui.WindowFlags.NoResize)
)
_MOST_ROWS = 6  # of the list of policies
_LONGEST_PLOT = 2000  # points
# The camera at the start.
_AZIMUTH = 125.0  # [deg]
_ELEVATION = -32.0  # [deg]
_DISTANCE = 6.0  # [m]


def show(player: Player, port: int, say: Callable[[str], None]) -> list[str]:
    """Serve a player until it has played its episodes; return their outcomes.

    The page is at ``port`` of this machine (0: the first that is free); raises ConfigError where
    that is taken.
    """
    panel = Panel(player)
    own = _listening_socket(port)
    say(f"Open http://{HOST}:{own.getsockname()[1]}/ in a browser; Ctrl-C ends it.")
    handle = launch_thread.launch_thread(
        lambda end: _serve(end, own, panel), sim_plugins=[_Hands(player)]
    )
    model = shown_model(player.env.scene)
    shown = mujoco.MjData(model)

    def look(data: mujoco.MjData) -> bool:
        if not handle.is_running():
            return False
        copy_state(model, data, shown)
        handle.sync(model, shown)
        return True

    with handle:
        return player.run(look)


def _listening_socket(port: int) -> socket.socket:
    """Bind a port that only this machine can reach; raise ConfigError if it is taken."""
    for candidate in (port,) if port else PORTS:
        own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind((HOST, candidate))
        except OSError as error:
            own.close()
            problem = error.strerror
        else:
            return own
    asked = f"port {port}" if port else f"ports {PORTS[0]} to {PORTS[-1]}"
    raise ConfigError(
        f"--web: {asked} cannot be used ({problem}); name another port, or leave it out for a "
        "free one"
    )


def _serve(endpoint: Any, own: socket.socket, panel: Panel) -> None:
    """Serve the page on ``own`` until it is over."""
    from mujoco.studio import web_viewer  # not in every package of Studio

    from mqe.viewer.page_guard import guarded

    logging.getLogger("WebServer").setLevel(logging.ERROR)
    with _bound_to(web_viewer, own, guarded):
        viewer = web_viewer.WebViewer(
            viewer_protocol.ViewerConfig(gfx="web"), endpoint, plugins=[panel]
        )
        viewer_protocol.run_viewer_loop(viewer)


@contextmanager
def _bound_to(web_viewer: Any, own: socket.socket, guard: Callable[..., Any]) -> Iterator[None]:
    """Make Studio's server use ``own``, since its default socket listens to the whole network, and
    serve behind ``guard``. Its thread looks these functions up after it has started.
    """
    server = web_viewer.web_server
    bind = server.bind_public_socket
    serve = server.serve
    banner = web_viewer._print_url_banner
    server.bind_public_socket = lambda *_: own
    server.serve = guard(serve)
    web_viewer._print_url_banner = lambda *_: None
    web_viewer.print = lambda *_, **__: None  # it would tell of every model
    try:
        yield
    finally:
        server.bind_public_socket = bind
        server.serve = serve
        web_viewer._print_url_banner = banner


class _Hands(plugin.SimPlugin):
    """Lets the user pull at bodies: double click one, then drag with Ctrl and the right button."""

    def __init__(self, player: Player) -> None:
        self._sim = player.env.sim
        self._is_pulling = False

    @messages.handler
    def on_perturb(self, event: messages.PerturbSnapshot) -> bool:
        """Put the forces into the world."""
        is_pulling = bool(np.any(event.state))
        if is_pulling or self._is_pulling:
            forces = torch.as_tensor(event.state.reshape(-1, 6), dtype=self._sim.xfrc_applied.dtype)
            self._sim.xfrc_applied[0].copy_(forces)
        self._is_pulling = is_pulling
        return True

    @messages.handler
    def on_state(self, event: messages.StateEvent) -> bool:
        """Do nothing: the viewer does not change the state."""
        return True


class Panel(plugin.ViewerPlugin):
    """Buttons, lists, plots and arrows beside and in the scene; runs in the viewer's thread."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.num_frames = 0
        self.places: dict[str, tuple[float, float]] = {}  # middle of every button, in pixels
        self._shows_commands = True
        self._follows = True
        self._ux = ux.UxState()
        self._bodies: list[int] = []
        # Wall clock and episode's time at the last look, and the speed.
        self._measured = (
            time.monotonic(),
            0.0,
            1.0,
        )

    @messages.handler
    def on_model(self, event: messages.PostModelEvent) -> None:
        """Aim the camera at a new scene."""
        names = {event.model.body(i).name: i for i in range(event.model.nbody)}
        self._bodies = [names[name] for name in self.player.robots if name in names]
        camera = self.viewer.camera
        mujoco.mjv_defaultFreeCamera(event.model, camera)
        camera.azimuth = _AZIMUTH
        camera.elevation = _ELEVATION
        camera.distance = _DISTANCE
        self._target = names.get("object") or (self._bodies[0] if self._bodies else 0)
        self._follow()

    @messages.handler
    def on_update(self, _: messages.UpdateEvent) -> None:
        """Read the mouse and draw the command arrows."""
        viewer = self.viewer
        controls = self.player.controls
        self.num_frames += 1
        move = viewer.client_camera is None
        inputs.handle_mouse_events(
            viewer.model,
            viewer.data,
            viewer.camera,
            viewer.vis_options,
            viewer.perturb,
            self._ux,
            move_camera=move,
        )
        if not controls.is_paused:
            viewer_utils.apply_perturb(viewer, viewer.model, viewer.data)
        commands = list(self.player.commands) if self._shows_commands else []
        viewer.extra_geoms[:] = [
            arrow.draw(mujoco.MjvGeom())
            for body, command in zip(self._bodies, commands, strict=False)
            for arrow in command_arrows(viewer.data.xpos[body], viewer.data.xmat[body], command)
        ]

    @messages.handler
    def on_build_gui(self, _: messages.BuildGuiEvent) -> None:
        """Build the panel of this frame."""
        imgui.SetNextWindowPos(imgui.Vec2(8, 8))
        imgui.SetNextWindowSize(imgui.Vec2(_PANEL_WIDTH, imgui.GetIO().DisplaySize.y - 16))
        if imgui.Begin("mapush", flags=_FIXED)[0]:
            self._status()
            self._buttons()
            self._choices()
            if self.player.can_steer:
                self._sliders()
            self._plots()
        imgui.End()

    def _status(self) -> None:
        player = self.player
        controls = self.player.controls
        then, time_s, speed = self._measured
        now = time.monotonic()
        if now - then > 1.0:
            speed = max(player.time_s - time_s, 0.0) / (now - then)
            self._measured = (now, player.time_s, speed)
        of = "" if math.isinf(player.num_episodes) else f" of {player.num_episodes:.0f}"
        imgui.Text(
            f"episode {player.episode}{of}   {player.time_s:5.2f} s   "
            f"{'paused' if controls.is_paused else ''}"
        )
        imgui.Text(f"{speed:.2f} times real time")
        ended = ", ".join(
            f"{words} {number}" for words, number in Counter(player.outcomes).most_common()
        )
        imgui.TextWrapped(f"ended so far: {ended or 'none'}")
        imgui.TextWrapped(f"last: {player.note}" if player.note else " ")

    def _buttons(self) -> None:
        controls = self.player.controls
        if self._button("Run" if controls.is_paused else "Pause", "pause"):
            controls.is_paused = not controls.is_paused
        imgui.SameLine()
        if self._button("Step", "step"):
            controls.is_paused = True
            controls.num_steps += 1
        imgui.SameLine()
        if self._button("Next episode", "next"):
            controls.is_next = True
        changed, speed = imgui.SliderFloat("speed", controls.speed, 0.1, 4.0, "%.1f x")
        self._mark("speed")
        if changed:
            controls.speed = min(max(speed, 0.1), 4.0)

    def _choices(self) -> None:
        controls = self.player.controls
        viewer = self.viewer
        imgui.Text("who acts")
        num_rows = min(len(self.player.policies), _MOST_ROWS)
        if imgui.BeginListBox(
            "##policies", imgui.Vec2(-1, (num_rows + 0.5) * imgui.GetTextLineHeightWithSpacing())
        ):
            for name in self.player.policies:
                if imgui.Selectable(name, name == controls.policy):
                    controls.policy = name
                self._mark(f"policy {name}")
            imgui.EndListBox()
        _, self._shows_commands = self._checkbox("commands", self._shows_commands)
        imgui.SameLine()
        flags = viewer.vis_options.flags
        force = int(mujoco.mjtVisFlag.mjVIS_CONTACTFORCE)
        point = int(mujoco.mjtVisFlag.mjVIS_CONTACTPOINT)
        changed, is_on = self._checkbox("contact forces", bool(flags[force]))
        if changed:
            flags[force] = flags[point] = is_on
        imgui.SameLine()
        changed, self._follows = self._checkbox("follow", self._follows)
        if changed:
            self._follow()

    def _sliders(self) -> None:
        """Show the sliders that command a gait."""
        controls = self.player.controls
        is_driven = controls.command is not None
        changed, is_driven = self._checkbox("drive it yourself", is_driven)
        if changed:
            controls.command = (0.0, 0.0, 0.0) if is_driven else None
        if controls.command is None:
            return
        values = []
        for label, value in zip(
            ("forward [m/s]", "left [m/s]", "turning [rad/s]"), controls.command, strict=True
        ):
            values.append(imgui.SliderFloat(label, value, -0.65, 0.65, "%.2f")[1])
            self._mark(label)
        controls.command = (values[0], values[1], values[2])

    def _plots(self) -> None:
        size = imgui.Vec2(-1, 170)
        times, distances = self.player.distance
        if times:
            _plot("distance to the goal [m]", size, times, {"##distance": distances})
        times, terms = self.player.rewards
        if times:
            _plot(
                "rewards a decision",
                imgui.Vec2(-1, 260),
                times,
                {k: v for k, v in list(terms.items()) if any(v)},
            )

    def _follow(self) -> None:
        camera = self.viewer.camera
        if self._follows:
            camera.type = int(mujoco.mjtCamera.mjCAMERA_TRACKING)
            camera.trackbodyid = self._target
            self._ux.camera_index = ux.TRACKING_CAMERA_IDX
        else:
            camera.type = int(mujoco.mjtCamera.mjCAMERA_FREE)
            self._ux.camera_index = ux.TUMBLE_CAMERA_IDX
        self.viewer.camera_index = self._ux.camera_index

    def _button(self, label: str, name: str) -> bool:
        is_pressed = imgui.Button(label)
        self._mark(name)
        return is_pressed

    def _checkbox(self, label: str, value: bool) -> tuple[bool, bool]:
        result = imgui.Checkbox(label, value)
        self._mark(label)
        return result

    def _mark(self, name: str) -> None:
        low = imgui.GetItemRectMin()
        high = imgui.GetItemRectMax()
        self.places[name] = ((low.x + high.x) / 2, (low.y + high.y) / 2)


def _plot(title: str, size: Any, times: list[float], lines: dict[str, list[float]]) -> None:
    if not implot.BeginPlot(title, size):
        return
    fit = int(implot.AxisFlags.AutoFit)
    implot.SetupAxes("time [s]", "", fit, fit)
    for label, values in lines.items():
        num_points = min(len(times), len(values))
        stride = max(1, num_points // _LONGEST_PLOT)
        implot.PlotLine(label, times[:num_points:stride], values[:num_points:stride])
    implot.EndPlot()
