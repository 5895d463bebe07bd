"""Panel and camera of the viewer's page."""

import math
from collections import Counter

import mujoco
from mujoco.studio import (
    messages,
    plugin,
    ux,  # pyright: ignore[reportAttributeAccessIssue]
)
from mujoco.studio.dear_imgui import dear_imgui as imgui

from mqe.viewer.camera import CAMERAS, camera_axes, fit_distance, half_picture, margins
from mqe.viewer.player import Player

_WIDTH = 340  # pixels
_NARROW = 2 * _WIDTH  # pixels of a page with a folded panel at first
_EDGE = 8  # pixels around the panel
_FIXED = int(imgui.WindowFlags.NoMove) | int(imgui.WindowFlags.NoResize)
_MOST_ROWS = 6  # of the list of policies
_SLIDERS = ("forward [m/s]", "left [m/s]", "turning [rad/s]")
_SETTLED = 5  # states of an episode after which the page surely shows one of them
_FASTEST = 0.65  # [m/s, rad/s] command of a slider


class Panel(plugin.ViewerPlugin):
    """Buttons, lists and drawings beside and in the scene, in the viewer's thread."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.num_frames = 0
        self.places: dict[str, tuple[float, float]] = {}  # middle of every button, in pixels
        self._size = (0.0, 0.0)  # of the page [pixels]
        self._episode = 0  # with the camera's present distance, once its states are on the page

    @messages.handler
    def on_model(self, event: messages.PostModelEvent) -> None:
        """Aim the camera at a new scene."""
        self._aim()

    @messages.handler
    def on_update(self, _: messages.UpdateEvent) -> None:
        """Draw commands and paths, and move the camera at an episode's start."""
        self.num_frames += 1
        if self.viewer.model.nbody == 1:  # there is no scene yet
            return
        size = imgui.GetIO().DisplaySize
        is_resized = (size.x, size.y) != self._size  # a browser that connects has its own size
        if self.player.episode != self._episode or is_resized:
            self._size = (size.x, size.y)
            self._aim()
            # The number of an episode comes before its first state.
            if self.player.num_shown >= _SETTLED:
                self._episode = self.player.episode
        lines = self.player.lines(self.viewer.data)
        self.viewer.extra_geoms[:] = [line.draw(mujoco.MjvGeom()) for line in lines]

    def _aim(self) -> None:
        """Let the camera track the object, or the first robot, from the films' direction.

        Robots, object and goal are in the picture. The browser moves the camera from there.
        """
        viewer = self.viewer
        scene = self.player.env.scene
        size = imgui.GetIO().DisplaySize
        if size.y <= 0:
            return
        names = [*self.player.robots, *(("object", "goal") if scene.object is not None else ())]
        bodies = [viewer.model.body(name).id for name in names]
        tracked = bodies[-2] if scene.object is not None else bodies[0]
        angle = CAMERAS["follow"]
        camera = viewer.camera
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = tracked
        camera.azimuth = angle.azimuth
        camera.elevation = angle.elevation
        points = viewer.data.xpos[bodies]
        axes = camera_axes(angle.azimuth, angle.elevation)
        half_size = half_picture(viewer.model, max(size.x - _WIDTH, _WIDTH) / size.y)
        center = viewer.data.xpos[tracked]
        camera.distance = fit_distance(points, center, axes, half_size, margins(scene))
        viewer.camera_index = ux.TRACKING_CAMERA_IDX

    @messages.handler
    def on_build_gui(self, _: messages.BuildGuiEvent) -> None:
        """Build this frame's panel, at first folded on a narrow page."""
        size = imgui.GetIO().DisplaySize
        imgui.SetNextWindowPos(imgui.Vec2(_EDGE, _EDGE))
        imgui.SetNextWindowSize(imgui.Vec2(min(_WIDTH, size.x - 2 * _EDGE), size.y - 2 * _EDGE))
        imgui.SetNextWindowCollapsed(size.x < _NARROW, int(imgui.Cond.Once))
        if imgui.Begin("mapush", flags=_FIXED)[0]:
            self._status()
            self._buttons()
            self._policies()
            if self.player.steer is not None:
                self._sliders()
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
        _, speed = imgui.SliderFloat("speed", controls.speed, 0.1, 4.0, "%.1f x")
        controls.speed = min(max(speed, 0.1), 4.0)
        if self._button("Reset view", "reset view"):
            self._aim()
        imgui.SameLine()
        flags = self.viewer.vis_options.flags
        force = int(mujoco.mjtVisFlag.mjVIS_CONTACTFORCE)
        point = int(mujoco.mjtVisFlag.mjVIS_CONTACTPOINT)
        _, flags[force] = imgui.Checkbox("contact forces", bool(flags[force]))
        flags[point] = flags[force]
        self._mark("contact forces")

    def _policies(self) -> None:
        controls = self.player.controls
        imgui.Text("policy")
        # Round buttons show the choice in every theme. A row's colour does not.
        num_rows = min(len(self.player.policies), _MOST_ROWS)
        height = (num_rows + 0.5) * imgui.GetFrameHeightWithSpacing()
        if imgui.BeginListBox("##policies", imgui.Vec2(-1, height)):
            for name in self.player.policies:
                if imgui.RadioButton(name, name == controls.policy):
                    controls.policy = name
                self._mark(f"policy {name}")
            imgui.EndListBox()

    def _sliders(self) -> None:
        """Show the sliders for a gait's command."""
        controls = self.player.controls
        changed, is_driven = imgui.Checkbox("drive it yourself", controls.command is not None)
        if changed:
            controls.command = (0.0, 0.0, 0.0) if is_driven else None
        if controls.command is None:
            return
        forward, left, turning = (
            imgui.SliderFloat(label, value, -_FASTEST, _FASTEST, "%.2f")[1]
            for label, value in zip(_SLIDERS, controls.command, strict=True)
        )
        controls.command = (forward, left, turning)

    def _button(self, label: str, name: str) -> bool:
        is_pressed = imgui.Button(label)
        self._mark(name)
        return is_pressed

    def _mark(self, name: str) -> None:
        low = imgui.GetItemRectMin()
        high = imgui.GetItemRectMax()
        self.places[name] = ((low.x + high.x) / 2, (low.y + high.y) / 2)
