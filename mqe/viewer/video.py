"""Films of a team at work: episodes rendered off-screen, in real time, with a camera that keeps everybody in view."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
from mqe.sim.base import Simulator
from mqe.viewer.offscreen import OffscreenRenderer

FOLLOW_TIME = 0.8  # [s] the camera's time constant
MARGIN = 1.1  # [m] around the origin of everything that is to be seen: the ring around the goal as well
NEAREST = 3.0  # [m] from what it looks at
ELEVATION, AZIMUTH = -32.0, 125.0  # [deg]
_FAR = 100.0  # [m, rad] beyond which a state is not drawn
LINGER = 1.0  # [s] that an episode's last picture stays


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
) -> Film:
    """Film ``episodes`` episodes, or ``seconds`` [s] of them if that is over sooner, of one world into an mp4 file.

    ``fps`` is rounded to a divisor of the control rate, so that the film runs at the world's own speed. Raises
    ConfigError where this machine cannot render.
    """
    path = Path(path)
    if path.suffix != ".mp4":
        raise ConfigError(f"{str(path)!r}: a film is an .mp4 file; name one that ends so")
    if not (episodes >= 1 and seconds > 0.0 and fps > 0 and 0 <= world < env.num_envs and min(size) > 0):
        raise ConfigError(
            f"a film needs episodes, seconds, fps and size above 0 and a world below {env.num_envs}, not "
            f"{episodes}, {seconds}, {fps}, {tuple(size)} and {world}"
        )
    env.check_open()
    stride = max(1, round(1.0 / (fps * env.step_dt)))
    rate = 1.0 / (stride * env.step_dt)
    with OffscreenRenderer(env.sim.model, *size) as renderer, closing(_writer(path, size, rate)) as writer:
        camera = Camera(env, world, rate, size[0] / size[1])
        take = _Take(env, renderer, camera, writer, stride, captions)
        try:
            with tapped(env, take.on_control_step):
                while len(take.outcomes) < episodes and take.num_frames < seconds * rate:
                    take.film_episode(policy, round(seconds * rate) if math.isfinite(seconds) else None)
        except OSError as error:
            if error.strerror is not None:
                raise
            raise _not_written(path) from None  # ffmpeg has gone
    _check_written(path, take.num_frames)
    return Film(path, take.num_frames, take.num_frames / rate, take.outcomes)


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
    model, data = env.scene.model, mujoco.MjData(env.scene.model)
    rate = 0.5 / env.step_dt
    with OffscreenRenderer(model, *size) as renderer, closing(_writer(Path(path), size, rate)) as writer:
        camera, num_frames = Camera(env, 0, rate, size[0] / size[1]), 0
        for t in range(len(qpos)):
            if not (np.abs(qpos[t]) < _FAR).all():
                continue
            data.qpos[:], data.mocap_pos[0] = qpos[t], goal_pos[t]
            mujoco.mj_forward(model, data)
            camera.look(data)
            renderer.update(data, camera.view)
            writer.send(renderer.draw(f"{(t - len(qpos)) * env.step_dt:5.2f} s", caption))
            num_frames += 1
    if not num_frames:
        raise ConfigError(f"{str(path)!r}: none of the {len(qpos)} states can be seen: {caption}")
    _check_written(Path(path), num_frames)
    return Film(Path(path), num_frames, num_frames / rate, [])


class Camera:
    """A free camera that keeps robots, object and goal of one world in the picture, moving smoothly in an episode."""

    def __init__(self, env: MultiAgentEnv, world: int, rate: float, aspect: float) -> None:
        """Follow world ``world`` at ``rate`` [Hz] pictures that are ``aspect`` times as wide as high."""
        self.world = world
        model = env.sim.model
        self._bodies = [*env.scene.trunk_bodies]
        if env.scene.object is not None:
            self._bodies += [model.body("object").id, model.body("goal").id]
        self._blend = 1.0 - math.exp(-1.0 / (rate * FOLLOW_TIME))
        half_height = math.tan(math.radians(model.vis.global_.fovy) / 2)
        self._half_size = np.array([aspect * half_height, half_height])
        azimuth, elevation = math.radians(AZIMUTH), math.radians(ELEVATION)
        right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
        self._ahead = np.array([*(math.cos(elevation) * np.array([-right[1], right[0]])), math.sin(elevation)])
        self._across = np.stack((right, np.cross(right, self._ahead)))
        self._center: NDArray[np.float64] | None = None
        self._distance = NEAREST
        self.view = mujoco.MjvCamera()
        self.view.type = mujoco.mjtCamera.mjCAMERA_FREE
        self.view.elevation, self.view.azimuth = ELEVATION, AZIMUTH

    def cut(self) -> None:
        """Jump to the scene at the next picture instead of moving there."""
        self._center = None

    def look(self, data: mujoco.MjData) -> None:
        """Turn to where everything is now, from as near as everything fits in."""
        points = data.xpos[self._bodies]
        center = (points.min(axis=0) + points.max(axis=0)) / 2
        offset = points - center
        needed = (np.abs(offset @ self._across.T) + MARGIN) / self._half_size - (offset @ self._ahead)[:, None]
        distance = max(NEAREST, float(needed.max()))
        if self._center is None:
            self._center, self._distance = center, distance
        self._center = self._center + self._blend * (center - self._center)
        self._distance += self._blend * (distance - self._distance)
        self.view.lookat[:] = self._center
        self.view.distance = self._distance


class _Take:
    """Pictures of one world's episodes on their way into a file."""

    def __init__(
        self,
        env: MultiAgentEnv,
        renderer: OffscreenRenderer,
        camera: Camera,
        writer: Any,
        stride: int,
        captions: bool,
    ) -> None:
        self._env, self._renderer, self._camera, self._writer = env, renderer, camera, writer
        self._stride, self._captions = stride, captions
        self._episode, self._step = 0, 0  # episodes so far, control steps into this one
        self.num_frames = 0
        self.outcomes: list[str] = []
        self._obs: Tensor | None = None

    def film_episode(self, policy: Policy, last_frame: int | None) -> None:
        """Run the world to the end of its episode, or until the film has ``last_frame`` pictures."""
        env, world = self._env, self._camera.world
        obs = env.reset()[0] if self._obs is None else self._obs
        self._camera.cut()
        self._episode, self._step = self._episode + 1, 0
        self._picture()
        while last_frame is None or self.num_frames < last_frame:
            step = env.step(policy(obs))
            obs = self._obs = step.obs
            if hasattr(policy, "forget"):  # a plain function remembers nothing
                policy.forget(step.done)
            if bool(step.done[world]):
                self.outcomes.append(outcome_words(env, world, bool(step.valid[world])))
                frame = self._renderer.draw(self._caption(), self.outcomes[-1] if self._captions else "")
                for _ in range(round(LINGER / (self._stride * env.step_dt))):
                    self._write(frame)
                return

    def on_control_step(self) -> None:
        """Take every ``stride``-th picture."""
        self._step += 1
        if self._step % self._stride == 0:
            self._picture()

    def _picture(self) -> None:
        data = self._env.sim.data(self._camera.world)
        self._camera.look(data)
        self._renderer.update(data, self._camera.view)
        self._write(self._renderer.draw(self._caption()))

    def _write(self, frame: NDArray[np.uint8]) -> None:
        self._writer.send(frame)
        self.num_frames += 1

    def _caption(self) -> str:
        return f"episode {self._episode}   {self._step * self._env.step_dt:4.1f} s" if self._captions else ""


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


def _check_written(path: Path, num_frames: int) -> None:
    """Raise ConfigError unless the film is whole: its writer's exit code is nobody's."""
    try:
        found, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    except (RuntimeError, OSError):
        found = 0
    if found != num_frames:
        raise _not_written(path)


def _not_written(path: Path) -> ConfigError:
    return ConfigError(f"{str(path)!r}: ffmpeg could not write the film; make room there, or name another place")


def _writer(path: Path, size: tuple[int, int], rate: float) -> Any:
    """Give a generator that takes pictures by ``send``; H.264 that every player reads."""
    writer = imageio_ffmpeg.write_frames(
        str(path), size, fps=rate, codec="libx264", pix_fmt_out="yuv420p", quality=6, macro_block_size=2,  # type: ignore
        output_params=["-preset", "veryfast", "-movflags", "+faststart"], ffmpeg_log_level="error",
    )  # fmt: skip
    writer.send(None)  # start it
    return writer
