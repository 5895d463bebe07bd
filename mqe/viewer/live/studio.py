"""A player in MuJoCo's Studio: a page for browsers on this machine."""

from __future__ import annotations

import http.client
import logging
import math
import os
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from mqe.config import ConfigError
from mqe.viewer.live.live_view import LiveView, copy_live_state, drawn_lines, live_model
from mqe.viewer.live.player import Player
from mqe.viewer.meshes import NO_MESHES, Meshes

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
    from mujoco.studio.viewer_handle import ViewerHandle

    from mqe.viewer.live.page_guard import PageGuard
except ImportError as error:
    raise ConfigError(
        f"MuJoCo's Studio is missing ({error}); pip install 'mujoco>=4.0' brings it"
    ) from None

HOST = "127.0.0.1"
PORTS = range(8080, 8180)  # tried in turn by default
_NAP_S = 0.05  # [s] between two looks at a starting page
_END_S = 10.0  # [s] for a server's start
_has_served = threading.Event()  # set by the only page of this process
_PANEL_WIDTH = 340  # pixels
_NARROW = 2 * _PANEL_WIDTH  # pixels of a page with a folded panel at first
_EDGE = 8  # pixels around the panel
_FIXED = int(imgui.WindowFlags.NoMove) | int(imgui.WindowFlags.NoResize)
_MOST_ROWS = 6  # of the list of policies
_LONGEST_PLOT = 2000  # points
# Studio's renderer has one light that casts shadows and one from all sides; by default the latter
# outshines the shadows. The light from the camera adds none.
_LIGHTS = {
    "filament.fallback.scene_light_intensity": 120_000.0,  # [cd], shared by all lights
    "filament.fallback.environment_light_intensity": 8_000.0,  # [lx]
    "filament.fallback.head_light_intensity": 0.0,
}


def show(
    player: Player,
    port: int,
    say: Callable[[str], None],
    meshes: Meshes = NO_MESHES,
    opens_browser: bool = False,
    host: str | None = None,
) -> list[str]:
    """Serve a player until it has played its episodes. Return their outcomes.

    ``port`` is the page's, 0 for the first free one. ``host`` is the name of a proxy's page. Raise
    ConfigError if the port is taken.
    """
    panel = Panel(player)
    listener = _listening_socket(port)
    guard = PageGuard(listener.getsockname()[1], host)
    model = live_model(player.env.scene, meshes, _LIGHTS)
    shown = mujoco.MjData(model)
    with served(listener, panel, guard, [_Hands(player)]) as handle, ExitStack() as stack:
        address = f"http://{HOST}:{listener.getsockname()[1]}/?token={guard.token}"
        say(f"Open {address} in a browser; Ctrl-C ends it.")
        if opens_browser:
            stack.enter_context(_open_in_browser(address))

        def look(data: mujoco.MjData) -> bool:
            if not handle.is_running():
                return False
            copy_live_state(model, data, shown)
            handle.sync(model, shown)
            return True

        return player.run(look)


def has_display() -> bool:
    """Return whether a browser on this machine has a screen to open a page on."""
    return not sys.platform.startswith("linux") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


@contextmanager
def _open_in_browser(address: str) -> Iterator[None]:
    """Context manager: open a page in the user's browser by a private file, and remove the file at
    the end.

    All users on a machine can read its programs' arguments, so the browser's command line must not
    contain the token.
    """
    with tempfile.TemporaryDirectory(prefix="mapush-") as folder:
        file = Path(folder) / "page.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', "utf-8")
        webbrowser.open(file.as_uri())
        yield


@contextmanager
def served(
    listener: socket.socket, panel: Panel, guard: PageGuard, plugins: Sequence[Any] = ()
) -> Iterator[ViewerHandle]:
    """Context manager: serve the page on ``listener`` from a thread. The page is up when the block
    begins.

    Raise ConfigError for the second page of a process: Studio's pages share one connection to Dear
    ImGui, and a second one waits for ever or crashes.
    """
    if _has_served.is_set():
        listener.close()
        raise ConfigError(
            "--web: this process has served a page before, and Studio can serve one only; start "
            "another process for another page"
        )
    _has_served.set()
    is_up = threading.Event()
    handle = launch_thread.launch_thread(
        lambda end: _serve(end, listener, panel, guard, is_up), sim_plugins=list(plugins)
    )
    with handle:
        # Closing a page during its start crashes the process.
        while handle.is_running() and not is_up.wait(_NAP_S):
            pass
        yield handle


def _listening_socket(port: int) -> socket.socket:
    """Bind a loopback port. Raise ConfigError if it is taken."""
    for candidate in (port,) if port else PORTS:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if sys.platform != "win32":  # where the option shares a port with other programs
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, candidate))
            listener.listen()  # two processes can bind a port without a listener
        except OSError as error:
            listener.close()
            problem = error.strerror
        else:
            return listener
    requested = f"port {port}" if port else f"ports {PORTS[0]} to {PORTS[-1]}"
    raise ConfigError(
        f"--web: {requested} cannot be used ({problem}); name another port, or leave it out for a "
        "free one"
    )


def _serve(
    endpoint: Any, listener: socket.socket, panel: Panel, guard: PageGuard, is_up: threading.Event
) -> None:
    """Serve the page on ``listener`` until its end. Set ``is_up`` as soon as a browser can open the
    page.
    """
    from mujoco.studio import web_viewer  # not in every package of Studio

    logging.getLogger("WebServer").setLevel(logging.ERROR)
    with _bound_to(web_viewer, listener, guard):
        viewer = web_viewer.WebViewer(
            viewer_protocol.ViewerConfig(gfx="web"), endpoint, plugins=[panel]
        )
        # A first frame before the server runs can crash or hang.
        _wait_for_answer(listener.getsockname()[1])
        is_up.set()
        viewer_protocol.run_viewer_loop(viewer)


def _wait_for_answer(port: int) -> None:
    """Return when the page answers, or after some seconds."""
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(HOST, port, timeout=_END_S)
        try:
            connection.request("GET", "/")
            connection.getresponse()
            return
        except (OSError, http.client.HTTPException):
            time.sleep(_NAP_S)
        finally:
            connection.close()


@contextmanager
def _bound_to(web_viewer: Any, listener: socket.socket, guard: PageGuard) -> Iterator[None]:
    """Context manager: make Studio's server listen on ``listener`` behind ``guard``.

    Its default socket listens to the whole network. Studio's thread resolves these functions after
    its start.
    """
    server = web_viewer.web_server
    bind = server.bind_public_socket
    serve = server.serve
    banner = web_viewer._print_url_banner
    server.bind_public_socket = lambda *_: listener
    server.serve = guard.around(serve)
    web_viewer._print_url_banner = lambda *_: None
    web_viewer.print = lambda *_, **__: None  # Studio prints a line for every model
    try:
        yield
    finally:
        server.bind_public_socket = bind
        server.serve = serve
        web_viewer._print_url_banner = banner


class _Hands(plugin.SimPlugin):
    """Applies a user's mouse forces on bodies to the shown world."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._forces = player.env.sim.data.xfrc_applied  # (N, bodies, 6)
        self._pulled: int | None = None  # the world

    @messages.handler
    def on_perturb(self, event: messages.PerturbSnapshot) -> bool:
        """Apply the mouse forces to the world."""
        if self._pulled is not None:
            self._forces[self._pulled].zero_()
        self._pulled = self._player.world if np.any(event.state) else None
        if self._pulled is not None:
            forces = torch.as_tensor(event.state.reshape(-1, 6), dtype=self._forces.dtype)
            # The last body of the shown scene is the camera's.
            self._forces[self._pulled].copy_(forces[: self._forces.shape[1]])
        return True

    @messages.handler
    def on_state(self, event: messages.StateEvent) -> bool:
        """Do nothing: the viewer does not change the state."""
        return True


class Panel(plugin.ViewerPlugin):
    """Buttons, lists, plots and arrows beside and in the scene, in the viewer's thread."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.num_frames = 0
        self.places: dict[str, tuple[float, float]] = {}  # middle of every button, in pixels
        self._shows_commands = True
        self._shows_trail = True
        self._view: LiveView | None = None  # of the present scene
        self._covered = 0.0  # panel's share of the page's width
        self._mouse = ux.UxState()

    @messages.handler
    def on_model(self, event: messages.PostModelEvent) -> None:
        """Aim the camera at a new scene."""
        self._view = LiveView(event.model, self.player)
        mujoco.mjv_defaultFreeCamera(event.model, self.viewer.camera)
        self._view.reset(self.viewer.camera)

    @messages.handler
    def on_update(self, _: messages.UpdateEvent) -> None:
        """Aim the camera, let the user pull at a body, and draw arrows and path."""
        viewer = self.viewer
        self.num_frames += 1
        size = imgui.GetIO().DisplaySize
        if self._view is None or size.x <= 0 or size.y <= 0:
            return
        self._view.aim(viewer.data, viewer.camera, size.x / size.y, self._covered)
        inputs.handle_mouse_events(
            viewer.model,
            viewer.data,
            self._view.standing(viewer.data, viewer.camera),
            viewer.vis_options,
            viewer.perturb,
            self._mouse,
            move_camera=False,
        )
        if not self.player.controls.is_paused:
            viewer_utils.apply_perturb(viewer, viewer.model, viewer.data)
        tracking = ux.TRACKING_CAMERA_IDX if self._view.follows else ux.TUMBLE_CAMERA_IDX
        viewer.camera_index = tracking
        lines = drawn_lines(self.player, viewer.data, self._shows_commands, self._shows_trail)
        viewer.extra_geoms[:] = [line.draw(mujoco.MjvGeom()) for line in lines]

    @messages.handler
    def on_build_gui(self, _: messages.BuildGuiEvent) -> None:
        """Build this frame's panel, at first folded on a narrow page."""
        size = imgui.GetIO().DisplaySize
        width = min(_PANEL_WIDTH, size.x - 2 * _EDGE)
        imgui.SetNextWindowPos(imgui.Vec2(_EDGE, _EDGE))
        imgui.SetNextWindowSize(imgui.Vec2(width, size.y - 2 * _EDGE))
        imgui.SetNextWindowCollapsed(size.x < _NARROW, int(imgui.Cond.Once))
        is_open = imgui.Begin("mapush", flags=_FIXED)[0]
        self._covered = (width + _EDGE) / max(size.x, 1.0) if is_open else 0.0
        if is_open:
            self._status()
            self._buttons()
            self._choices()
            if self.player.can_steer:
                self._sliders()
            self._plots()
        imgui.End()

    def _status(self) -> None:
        player = self.player
        total = "" if math.isinf(player.num_episodes) else f" of {player.num_episodes:.0f}"
        paused = "   paused" if player.controls.is_paused else ""
        imgui.Text(f"episode {player.episode}{total}   {player.time_s:5.2f} s{paused}")
        ended = ", ".join(
            f"{words} {number}" for words, number in Counter(player.outcomes).most_common()
        )
        imgui.TextWrapped(f"ended so far: {ended or 'none'}")
        imgui.TextWrapped(f"last: {player.note}" if player.note else " ")
        if player.env.scene.object is not None:
            imgui.TextWrapped(pushing_words(player.useful_impulse))

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
        num_worlds = self.player.env.num_envs
        if num_worlds > 1:
            changed, world = imgui.SliderInt("world", controls.world + 1, 1, num_worlds)
            self._mark("world")
            if changed:
                controls.world = min(max(world, 1), num_worlds) - 1

    def _choices(self) -> None:
        controls = self.player.controls
        viewer = self.viewer
        imgui.Text("policy")
        # Round buttons show the choice in every theme. A row's colour does not.
        num_rows = min(len(self.player.policies), _MOST_ROWS)
        if imgui.BeginListBox(
            "##policies", imgui.Vec2(-1, (num_rows + 0.5) * imgui.GetFrameHeightWithSpacing())
        ):
            for name in self.player.policies:
                if imgui.RadioButton(name, name == controls.policy):
                    controls.policy = name
                self._mark(f"policy {name}")
            imgui.EndListBox()

        _, self._shows_commands = self._checkbox("commands", self._shows_commands)
        imgui.SameLine()
        _, self._shows_trail = self._checkbox("trail", self._shows_trail)
        imgui.SameLine()
        flags = viewer.vis_options.flags
        force = int(mujoco.mjtVisFlag.mjVIS_CONTACTFORCE)
        point = int(mujoco.mjtVisFlag.mjVIS_CONTACTPOINT)
        changed, is_on = self._checkbox("contact forces", bool(flags[force]))
        if changed:
            flags[force] = flags[point] = is_on
        if self._button("Reset view", "reset view") and self._view is not None:
            self._view.reset(viewer.camera)
        imgui.SameLine()
        if self._view is not None:
            _, self._view.follows = self._checkbox("follow", self._view.follows)

    def _sliders(self) -> None:
        """Show the sliders for a gait's command."""
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


def pushing_words(impulses: Sequence[float]) -> str:
    """Format each robot's fraction of the push towards the goal, from impulses [N s], as one
    line.
    """
    total = sum(impulses)
    shares = (
        ", ".join(f"{100.0 * impulse / total:.0f} %" for impulse in impulses)
        if total > 0.0
        else "-"
    )
    return f"push: {shares}"


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
