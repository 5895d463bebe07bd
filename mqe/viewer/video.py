"""Films of a team at work: episodes at the world's own speed, drawn off-screen on all cores, one or several at a time.

A film is made in two passes: the episodes are simulated and their states kept, then the states are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import imageio_ffmpeg
import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mqe.config import ConfigError
from mqe.env import MultiAgentEnv
from mqe.scene import Scene
from mqe.sim.base import Simulator
from mqe.viewer.looks import shown_model
from mqe.viewer.painters import Canvas, Painters, Picture, Tile

SUFFIXES = (".mp4", ".gif")
FOLLOW_TIME = 0.8  # [s] the camera's time constant
MARGIN = 1.1  # [m] around the origin of everything that is to be seen: the ring around the goal as well
NEAREST = 3.0  # [m] from what it looks at
_FAR = 100.0  # [m, rad] beyond which a state is not drawn
LINGER = 1.0  # [s] that an episode's last picture stays
_PALETTE_TIME = 2.0  # [s] of film from which a .gif takes its colours

Progress = Callable[[str, float, float | None], None]  # what is done, how much of it, and of how much where known


class Policy(Protocol):
    """What acts: obs (N, A, O) to actions (N, A, U), and may forget where episodes ended."""

    def __call__(self, obs: Tensor) -> Tensor: ...

    def forget(self, done: Tensor) -> None: ...


class Film(NamedTuple):
    """What was recorded."""

    path: Path
    num_frames: int
    seconds: float
    outcomes: list[str]  # of the episodes that ended while the camera ran


class Angle(NamedTuple):
    """From where a camera looks at a world."""

    azimuth: float = 125.0  # [deg]
    elevation: float = -32.0  # [deg] from the horizon; down is negative
    distance: float | None = None  # [m]; None: from as near as everything fits in


CAMERAS = {  # by name
    "follow": Angle(),
    "low": Angle(125.0, -14.0),
    "side": Angle(90.0, -20.0),
    "top": Angle(90.0, -89.0),
}


@torch.no_grad()
def record(
    env: MultiAgentEnv,
    policy: Policy,
    path: str | Path,
    episodes: int = 3,
    seconds: float = math.inf,
    fps: int = 25,
    size: tuple[int, int] = (960, 540),
    world: int = 0,
    captions: bool = True,
    tiles: tuple[int, int] = (1, 1),
    angle: Angle = CAMERAS["follow"],
    title: str = "",
    on_progress: Progress = lambda words, done, total: None,
) -> Film:
    """Film ``episodes`` episodes, or ``seconds`` [s] of film if that is over sooner, into an .mp4 or .gif file.

    ``tiles`` (columns, rows) episodes run side by side, in the worlds from ``world`` on. ``fps`` is rounded to a divisor
    of the control rate, so that the film runs at the world's own speed. ``title`` begins every caption. Raises
    ConfigError where this machine cannot render.
    """
    path, canvas = Path(path), Canvas(*size, *tiles)
    num_tiles = canvas.columns * canvas.rows
    _check_name(path)
    if not (episodes >= 1 and seconds > 0.0 and fps > 0 and 0 <= world < env.num_envs and min(canvas) > 0):
        raise ConfigError(
            f"a film needs episodes, seconds, fps, size and tiles above 0 and a world below {env.num_envs}, not "
            f"{episodes}, {seconds}, {fps}, {tuple(size)}, {tuple(tiles)} and {world}"
        )
    if world + num_tiles > env.num_envs:
        raise ConfigError(f"{num_tiles} tiles need a world each, and there are {env.num_envs - world}; lower tiles")
    env.check_open()
    stride = max(1, round(1.0 / (fps * env.step_dt)))
    rate = 1.0 / (stride * env.step_dt)
    most_frames = seconds * rate
    with Painters(shown_model(env.scene), canvas) as painters:
        cameras = [Camera(env, world + i, rate, canvas.aspect, angle) for i in range(num_tiles)]
        take = _Take(env, stride, world, num_tiles, episodes)
        with tapped(env, take.on_control_step):
            while not take.is_enough(most_frames):
                take.step(policy)
                on_progress("simulated", take.time_s, None)
        rounds = take.rounds(round(LINGER * rate))
        num_frames = int(min(sum(len(each) for each in rounds), most_frames))
        captioner = _Captioner(title, 1.0 / rate) if captions else None
        _write(path, painters, _pictures(rounds, cameras, captioner), num_frames, canvas, rate, on_progress)
    return Film(path, num_frames, num_frames / rate, _outcomes(rounds, num_frames))


def film_states(
    env: MultiAgentEnv,
    qpos: NDArray[np.float32],
    goal_pos: NDArray[np.float32],
    path: str | Path,
    caption: str,
    size: tuple[int, int] = (960, 540),
) -> Film:
    """Film states (T, nq) and the goal's positions (T, 3) [m] in the scene of ``env``, at half the world's speed.

    States that are not finite, or further away than a camera can see, are left out.
    """
    path, rate, canvas = Path(path), 0.5 / env.step_dt, Canvas(*size)
    _check_name(path)
    visible = [t for t in range(len(qpos)) if (np.abs(qpos[t]) < _FAR).all()]
    if not visible:
        raise ConfigError(f"{str(path)!r}: none of the {len(qpos)} states can be seen: {caption}")
    camera = Camera(env, 0, rate, canvas.aspect)
    times = [f"{(t - len(qpos)) * env.step_dt:5.2f} s" for t in visible]
    states = [_State(qpos[t].astype(np.float64), goal_pos[t].astype(np.float64).reshape(1, 3)) for t in visible]
    pictures = ([camera.tile(state, time, caption)] for state, time in zip(states, times, strict=True))
    with Painters(shown_model(env.scene), canvas) as painters:
        _write(path, painters, pictures, len(visible), canvas, rate)
    return Film(path, len(visible), len(visible) / rate, [])


class _State(NamedTuple):
    """What it takes to draw a world."""

    qpos: NDArray[np.float64]  # (nq,)
    mocap_pos: NDArray[np.float64]  # (nmocap, 3) [m]

    def points(self, scene: Scene) -> NDArray[np.float64]:
        """Return where robots, object and goal are, (P, 3) [m]."""
        size = scene.robot_qpos // scene.num_robots
        points = [self.qpos[size * i : size * i + 3] for i in range(scene.num_robots)]
        if scene.object is not None:
            points += [self.qpos[scene.robot_qpos : scene.robot_qpos + 3], self.mocap_pos[0]]
        return np.stack(points)


class Camera:
    """A free camera that keeps robots, object and goal of one world in the picture, moving smoothly in an episode."""

    def __init__(
        self, env: MultiAgentEnv, world: int, rate: float, aspect: float, angle: Angle = CAMERAS["follow"]
    ) -> None:
        """Follow world ``world`` at ``rate`` [Hz] pictures that are ``aspect`` times as wide as high."""
        self.world, self._scene = world, env.scene
        model = env.sim.model
        self._bodies = [*env.scene.trunk_bodies]
        if env.scene.object is not None:
            self._bodies += [model.body("object").id, model.body("goal").id]
        self._blend = 1.0 - math.exp(-1.0 / (rate * FOLLOW_TIME))
        half_height = math.tan(math.radians(model.vis.global_.fovy) / 2)
        self._half_size = np.array([aspect * half_height, half_height])
        azimuth, elevation = math.radians(angle.azimuth), math.radians(angle.elevation)
        right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
        self._ahead = np.array([*(math.cos(elevation) * np.array([-right[1], right[0]])), math.sin(elevation)])
        self._across = np.stack((right, np.cross(right, self._ahead)))
        self._center: NDArray[np.float64] | None = None
        self._fixed = angle.distance
        self._distance = NEAREST
        self.view = mujoco.MjvCamera()
        self.view.type = mujoco.mjtCamera.mjCAMERA_FREE
        self.view.elevation, self.view.azimuth = angle.elevation, angle.azimuth

    def cut(self) -> None:
        """Jump to the scene at the next picture instead of moving there."""
        self._center = None

    def look(self, data: mujoco.MjData) -> None:
        """Turn to where everything is now, from as near as everything fits in."""
        self._follow(data.xpos[self._bodies])

    def tile(self, state: _State, caption: str = "", outcome: str = "") -> Tile:
        """Turn to where everything is in ``state``, and return what is to be drawn of it."""
        self._follow(state.points(self._scene))
        x, y, z = (float(value) for value in self.view.lookat)
        return Tile(
            state.qpos.tobytes(), state.mocap_pos.tobytes(), (x, y, z), float(self.view.distance),
            float(self.view.azimuth), float(self.view.elevation), caption, outcome,
        )  # fmt: skip

    def _follow(self, points: NDArray[np.float64]) -> None:
        center = (points.min(axis=0) + points.max(axis=0)) / 2
        offset = points - center
        needed = (np.abs(offset @ self._across.T) + MARGIN) / self._half_size - (offset @ self._ahead)[:, None]
        distance = max(NEAREST, float(needed.max())) if self._fixed is None else self._fixed
        if self._center is None:
            self._center, self._distance = center, distance
        self._center = self._center + self._blend * (center - self._center)
        self._distance += self._blend * (distance - self._distance)
        self.view.lookat[:] = self._center
        self.view.distance = self._distance


@dataclass
class _Episode:
    """The states of an episode that are drawn, and in words how it ended."""

    number: int  # from 1, of the film
    states: list[_State] = field(default_factory=list)
    outcome: str = ""


@dataclass(frozen=True)
class _Round:
    """Episodes that are shown side by side; the last picture of each stays until all have ended, and a while longer."""

    episodes: Sequence[_Episode | None]  # one a tile
    linger: int  # pictures

    def __len__(self) -> int:
        return max(len(episode.states) for episode in self.episodes if episode is not None) + self.linger


class _Take:
    """Simulates episodes of several worlds, tile by tile, and keeps the states that are drawn."""

    def __init__(self, env: MultiAgentEnv, stride: int, world: int, num_tiles: int, num_episodes: int) -> None:
        self._env, self._stride, self._world, self._num_episodes = env, stride, world, num_episodes
        self._obs: Tensor | None = None
        self._steps = [0] * num_tiles  # control steps into the episode
        self._episodes: list[list[_Episode]] = [[] for _ in range(num_tiles)]
        self.time_s = 0.0

    def is_enough(self, most_frames: float) -> bool:
        """Return whether all episodes have ended, or there are pictures for ``most_frames``."""
        running = [tile for tile in range(len(self._steps)) if self._is_running(tile)]
        if self._obs is None or not running:
            return self._obs is not None
        return min(sum(len(episode.states) for episode in self._episodes[tile]) for tile in running) >= most_frames

    def step(self, policy: Policy) -> None:
        """Take one decision; begin with the start of the first episodes."""
        env, world = self._env, self._world
        tiles = range(len(self._steps))
        if self._obs is None:
            self._obs = env.reset()[0]
            for tile in tiles:
                self._begin(tile)
        step = env.step(policy(self._obs))
        self._obs = step.obs
        self.time_s += env.decision_period * env.step_dt
        if hasattr(policy, "forget"):  # a plain function remembers nothing
            policy.forget(step.done)
        for tile in tiles:
            if self._is_running(tile) and bool(step.done[world + tile]):
                valid = bool(step.valid[world + tile])
                self._episodes[tile][-1].outcome = outcome_words(env, world + tile, valid)
                self._begin(tile)

    def on_control_step(self) -> None:
        """Keep every ``stride``-th state."""
        for tile in range(len(self._steps)):
            self._steps[tile] += 1
            if self._is_running(tile) and self._steps[tile] % self._stride == 0:
                self._keep(tile)

    def rounds(self, linger: int) -> list[_Round]:
        """Return what was simulated in the order in which it is shown."""
        most = max(len(episodes) for episodes in self._episodes)
        return [
            _Round([episodes[k] if k < len(episodes) else None for episodes in self._episodes], linger)
            for k in range(most)
        ]

    def _is_running(self, tile: int) -> bool:
        episodes = self._episodes[tile]
        return not episodes or not episodes[-1].outcome

    def _begin(self, tile: int) -> None:
        """Begin a tile's next episode, if it is to have one more."""
        number = len(self._episodes[tile]) * len(self._steps) + tile + 1
        if number <= self._num_episodes:
            self._steps[tile] = 0
            self._episodes[tile].append(_Episode(number))
            self._keep(tile)

    def _keep(self, tile: int) -> None:
        sim, world = self._env.sim, self._world + tile
        qpos, mocap_pos = (
            values[world].to("cpu", torch.float64).numpy().copy() for values in (sim.qpos, sim.mocap_pos)
        )
        self._episodes[tile][-1].states.append(_State(qpos, mocap_pos))


class _Captioner(NamedTuple):
    """Writes captions."""

    title: str
    frame_time: float  # [s]

    def caption(self, episode: _Episode, index: int) -> str:
        """Return the caption of an episode's picture ``index``."""
        words = [self.title, f"episode {episode.number}", f"{index * self.frame_time:4.1f} s"]
        return "   ".join(word for word in words if word)


def _pictures(rounds: list[_Round], cameras: list[Camera], captioner: _Captioner | None) -> Iterator[Picture]:
    """Yield what is drawn, picture by picture."""
    for each in rounds:
        shown: list[Tile | None] = [None] * len(cameras)
        for camera in cameras:
            camera.cut()
        for k in range(len(each)):
            for i, episode in enumerate(each.episodes):
                tile = shown[i]
                if episode is None:
                    continue
                if k < len(episode.states):
                    caption = "" if captioner is None else captioner.caption(episode, k)
                    shown[i] = cameras[i].tile(episode.states[k], caption)
                elif captioner is not None and tile is not None:
                    shown[i] = tile._replace(outcome=episode.outcome)
            yield tuple(shown)


def _outcomes(rounds: list[_Round], num_frames: int) -> list[str]:
    """Return how the episodes ended that are over within ``num_frames`` pictures."""
    found, begin = [], 0
    for each in rounds:
        for episode in each.episodes:
            if episode is not None and episode.outcome and begin + len(episode.states) <= num_frames:
                found.append(episode.outcome)
        begin += len(each)
    return found


def outcome_words(env: MultiAgentEnv, world: int, is_valid: bool) -> str:
    """Return in words how the episode that has just ended in ``world`` ended."""
    if not is_valid:
        return "the simulation broke"
    happened = [words for name, words in env.report.outcomes.items() if bool(env.figures[name][world] > 0.5)]
    return happened[0] if happened else "time is up"


class _Tap:
    """A simulator that tells somebody after every control step."""

    def __init__(self, sim: Simulator, on_step: Callable[[], None]) -> None:
        self._sim, self._on_step = sim, on_step

    def step(self, decimation: int, ctrl: Tensor | None = None) -> None:
        self._sim.step(decimation, ctrl)
        self._on_step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sim, name)


@contextmanager
def tapped(env: MultiAgentEnv, on_step: Callable[[], None]) -> Iterator[None]:
    """Call ``on_step`` after every control step."""
    sim, captures = env.sim, env.captures
    env.sim, env.captures = _Tap(sim, on_step), False  # type: ignore[assignment]
    try:
        yield
    finally:
        env.sim, env.captures = sim, captures


def _check_name(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{str(path)!r}: a film is an .mp4 or a .gif file; name one that ends so")


def _write(
    path: Path,
    painters: Painters,
    pictures: Iterator[Picture],
    num_frames: int,
    canvas: Canvas,
    rate: float,
    on_progress: Progress = lambda words, done, total: None,
) -> None:
    """Draw ``num_frames`` pictures and write them into a file."""
    try:
        with closing(_writer(path, canvas, rate)) as writer:
            for done, pixels in enumerate(painters.paint(islice(pictures, num_frames)), start=1):
                writer.send(pixels)
                on_progress("drawn", done / rate, num_frames / rate)
    except OSError as error:
        if error.strerror is not None:
            raise
        raise _not_written(path) from None  # ffmpeg has gone
    _check_written(path, num_frames, rate)


def _check_written(path: Path, num_frames: int, rate: float) -> None:
    """Raise ConfigError unless the film is whole: its writer's exit code is nobody's."""
    try:
        found, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    except (RuntimeError, OSError):
        found, seconds = 0, 0.0
    is_whole = found == num_frames if path.suffix == ".mp4" else abs(seconds - num_frames / rate) < 1.0 / rate
    if not is_whole:
        raise _not_written(path)


def _not_written(path: Path) -> ConfigError:
    return ConfigError(f"{str(path)!r}: ffmpeg could not write the film; make room there, or name another place")


def _writer(path: Path, canvas: Canvas, rate: float) -> Any:
    """Return a generator that takes pictures as they are drawn by ``send``: H.264 that every player reads, or a GIF."""
    even = (2 * max(canvas.width // 2, 1), 2 * max(canvas.height // 2, 1))
    scale = f"scale={even[0]}:{even[1]}:flags=area"
    if path.suffix == ".gif":
        palette = f"trim=end_frame={max(round(_PALETTE_TIME * rate), 1)},palettegen=stats_mode=full"
        filters = f"{scale},split[a][b];[a]{palette}[p];[b][p]paletteuse=dither=bayer:bayer_scale=4:diff_mode=rectangle"
        options = {"codec": "gif", "pix_fmt_out": "pal8", "output_params": ["-vf", filters, "-loop", "0"]}
    else:
        faster = ["-preset", "veryfast", "-crf", "20", "-movflags", "+faststart"]
        options = {"codec": "libx264", "pix_fmt_out": "yuv420p", "output_params": ["-vf", scale, *faster]}
    writer = imageio_ffmpeg.write_frames(
        str(path), canvas.drawn_size, fps=rate, quality=None, macro_block_size=2, ffmpeg_log_level="error", **options
    )  # type: ignore
    writer.send(None)  # start it
    return writer
