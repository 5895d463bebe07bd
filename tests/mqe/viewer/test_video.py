"""Films: the OpenGL backend, the camera's view, and a short film read back from its file."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.registry import EnvCfg, SimCfg
from mqe.registry import make_env as make_world
from mqe.tasks.push import PushCfg
from mqe.viewer import offscreen, recording, video
from mqe.viewer.camera import CAMERAS, camera_axes, cameras, half_picture, margins
from mqe.viewer.offscreen import SceneRenderer, choose_backend
from mqe.viewer.recording import Recording, ShownState, shown_state
from mqe.viewer.video import record
from mqe.world.randomization import RandomizationCfg
from tests.support.pushing import make_env
from tests.support.rounding import FEW_STEPS

ASPECT = 16 / 9


class Still:
    """A standing policy with a count for finished episodes."""

    forgotten = 0

    def __call__(self, obs: Tensor) -> Tensor:
        return torch.zeros(*obs.shape[:2], 3)

    def reset_memory(self, done: Tensor) -> None:
        self.forgotten += int(done.sum())


@pytest.fixture
def no_choice_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    chosen = choose_backend() if choose_backend.cache_info().currsize else None
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    choose_backend.cache_clear()
    yield monkeypatch
    choose_backend.cache_clear()
    if chosen is not None:  # without another probe
        monkeypatch.delenv("MUJOCO_GL", raising=False)
        monkeypatch.setattr(offscreen, "_works", lambda backend: backend == chosen)
        choose_backend()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems have one backend each"
)
def test_takes_the_first_backend_that_works(no_choice_yet: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def works(backend: str) -> bool:
        tried.append(backend)
        return backend == "osmesa"

    no_choice_yet.setattr(offscreen, "_works", works)
    assert choose_backend() == "osmesa"
    assert tried == ["egl", "osmesa"]
    assert choose_backend() == "osmesa"
    assert len(tried) == 2  # asked once a process


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems have one backend each"
)
def test_names_the_package_where_nothing_works(no_choice_yet: pytest.MonkeyPatch) -> None:
    no_choice_yet.setattr(offscreen, "_works", lambda backend: False)
    with pytest.raises(ConfigError, match="apt-get install libegl1") as error:
        choose_backend()
    assert "\n" not in str(error.value)


def test_a_backend_asked_for_is_taken_if_it_works(no_choice_yet: pytest.MonkeyPatch) -> None:
    no_choice_yet.setenv("MUJOCO_GL", "OSMesa")
    no_choice_yet.setattr(offscreen, "_works", lambda backend: backend == "osmesa")
    assert choose_backend() == "osmesa"
    choose_backend.cache_clear()
    no_choice_yet.setattr(offscreen, "_works", lambda backend: False)
    with pytest.raises(ConfigError, match="MUJOCO_GL=osmesa does not work here; leave it unset"):
        choose_backend()


@pytest.mark.parametrize("backend", ["off", pytest.param("glfw", marks=pytest.mark.slow)])
def test_a_backend_that_cannot_draw_is_refused(no_choice_yet, backend: str) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        no_choice_yet.delenv(name, raising=False)
    no_choice_yet.setenv("MUJOCO_GL", backend)
    with pytest.raises(ConfigError, match=f"MUJOCO_GL={backend} does not work here"):
        choose_backend()


def test_a_probe_that_dies_or_hangs_is_a_no(no_choice_yet: pytest.MonkeyPatch) -> None:
    def hang(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("python", 1.0)

    assert not offscreen._works("no_such_backend")
    no_choice_yet.setattr(subprocess, "run", hang)
    assert not offscreen._works("egl")


@pytest.mark.parametrize("name", CAMERAS)
@pytest.mark.parametrize(("kind", "num_agents"), [("cuboid", 2), ("cylinder", 4)])
def test_everything_stays_in_the_picture(kind: str, num_agents: int, name: str) -> None:
    """The whole object is in the picture, also while it moves faster than the camera."""
    env = make_env(1, num_agents, object=kind)
    env.reset()
    start = shown_state(env)
    at = env.scene.robot_qpos
    states = []
    for step in range(50):
        qpos = start.qpos.copy()
        qpos[at : at + 2] += step * np.array((0.1, 0.08))  # [m]
        states.append(start._replace(qpos=qpos))
    angle = CAMERAS[name]
    views = cameras(env.scene, states, 25.0, ASPECT, angle)
    axes = camera_axes(angle.azimuth, angle.elevation)
    half_size = half_picture(env.scene.model, ASPECT)
    reach = margins(env.scene)
    assert reach[-2] >= 1.1
    for state, view in zip(states, views, strict=True):
        offset = state.points(env.scene) - (view.lookat - view.distance * axes[2])
        depth = offset @ axes[2]
        across = np.abs(offset @ axes[:2].T)
        assert (across + reach[:, None] <= depth[:, None] * half_size + FEW_STEPS).all()
    assert len({view.distance for view in views}) == 1


def test_the_camera_moves_smoothly_and_cuts_between_episodes() -> None:
    env = make_env(1)
    env.reset()
    first = shown_state(env)
    env.reset()
    second = shown_state(env)
    views = cameras(env.scene, [first] * 25 + [second] * 25, 25.0, ASPECT)
    steps = np.linalg.norm(np.diff([view.lookat.copy() for view in views], axis=0), axis=1)
    assert 0.0 < steps.max() < 0.1 * steps.sum()
    (alone,) = cameras(env.scene, [second], 25.0, ASPECT)
    np.testing.assert_allclose(alone.lookat, views[-1].lookat)


@pytest.fixture
def can_render() -> None:
    try:
        choose_backend()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.shadows
@pytest.mark.usefixtures("can_render")
@pytest.mark.parametrize("name", ["cylinder", "tblock"])
def test_the_top_of_an_object_far_from_the_goal_has_no_dots(name: str) -> None:
    env = make_env(1, 2, object=name)
    env.reset()
    state = shown_state(env)
    at = env.scene.robot_qpos
    goal = state.mocap_pos.copy()
    goal[0, :2] = state.qpos[at : at + 2] + 4.5  # [m]
    state = ShownState(state.qpos, goal, state.mocap_quat)
    (view,) = cameras(env.scene, [state], 25.0, ASPECT)
    with closing(SceneRenderer(env.scene, (960, 540))) as renderer:
        picture = renderer.draw(state, view).astype(int)
    is_top = np.abs(picture - (217, 168, 103)).max(axis=-1) < 25
    dots = ~is_top[:, 1:-1] & is_top[:, :-2] & is_top[:, 2:]
    assert is_top.sum() > 1000
    assert dots.sum() == 0


@pytest.mark.usefixtures("can_render")
def test_a_short_film(tmp_path) -> None:
    env = make_env(2, episode_length_s=0.4, decision_period=5)
    policy = Still()
    film = record(env, policy, tmp_path / "film.mp4", episodes=2, fps=12.5, size=(160, 96))
    # An episode: the start, 5 of 20 control steps, and two seconds of the last picture.
    assert film.num_frames == 2 * (1 + 5 + 25)
    assert film.seconds == pytest.approx(62 / 12.5)
    assert film.outcomes == ["time is up"] * 2
    assert policy.forgotten == 4
    frames = iio.imread(film.path)
    assert frames.shape == (62, 96, 160, 3)
    assert iio.immeta(film.path)["fps"] == 12.5
    assert frames[0].std() > 15  # something is there
    blue = frames[5, ..., 2].astype(int)
    red = frames[5, ..., 0].astype(int)
    assert (red - blue > 100).sum() > 20  # the goal
    assert (blue - red > 60).sum() > 5  # the first robot
    is_text = np.abs(frames[30, 80:].astype(int) - frames[4, 80:]).max() > 100
    assert is_text  # the outcome, at the bottom


@pytest.mark.slow
@pytest.mark.usefixtures("can_render")
def test_a_film_shows_that_a_robot_collapsed(tmp_path) -> None:
    env = make_env(1)
    crouch = torch.tensor([0.0, 1.1, -2.2] * 4).expand(1, 2, 12)
    env.task._controller.targets = lambda state: crouch  # type: ignore[attr-defined]
    film = record(env, Still(), tmp_path / "film.mp4", episodes=1, fps=5, size=(160, 96))
    assert film.outcomes == ["a robot collapsed"]
    assert iio.imread(film.path).shape == (film.num_frames, 96, 160, 3)


@pytest.mark.usefixtures("can_render")
def test_a_film_names_a_robot_that_dies(tmp_path, monkeypatch) -> None:
    captions: list[str] = []
    monkeypatch.setattr(video, "_write", lambda picture, text, *more: captions.append(text))
    losses = RandomizationCfg(lost_robots=("dead",), lost_time=0.1)
    task = PushCfg(episode_length_s=0.2, decision_period=1)
    env = make_world(EnvCfg(1, randomize=losses), SimCfg("mujoco", "cpu"), task, seed=1)
    record(env, Still(), tmp_path / "film.mp4", episodes=1, fps=50, size=(160, 96))
    assert captions[0] == "episode 1    0.0 s"
    assert re.fullmatch(r"episode 1    0\.2 s   robot[01] is lost", captions[-2])


@pytest.mark.slow
@pytest.mark.usefixtures("can_render")
def test_a_film_at_half_the_speed(tmp_path) -> None:
    env = make_env(1, decision_period=1)
    name = tmp_path / "film.mp4"
    film = record(env, Still(), name, seconds=0.4, fps=25, size=(64, 36), speed=0.5)
    assert film.num_frames == 10  # of as many control steps of 0.02 s
    assert film.outcomes == []
    assert iio.immeta(film.path)["fps"] == 25


@pytest.mark.usefixtures("can_render")
@pytest.mark.parametrize(
    ("seconds", "episodes"), [pytest.param(2.8, 1, marks=pytest.mark.slow), (5.0, 2)]
)
def test_a_film_ends_with_the_last_episode_that_it_has_room_for(tmp_path, seconds, episodes):
    env = make_env(1, episode_length_s=0.4, decision_period=1)  # 2.48 s of film each
    film = record(env, Still(), tmp_path / "film.mp4", seconds=seconds, fps=12.5, size=(64, 36))
    assert len(film.outcomes) == episodes
    assert film.seconds <= seconds


@pytest.mark.usefixtures("can_render")
@pytest.mark.parametrize("program", ["cat > /dev/null; exit 1", "exit 0"])
def test_a_film_that_was_not_written_is_no_film(program: str, monkeypatch, tmp_path) -> None:
    """A full disk: ffmpeg ends with an error, or stops taking pictures."""
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text(f"#!/bin/sh\n{program}\n")
    ffmpeg.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", lambda: str(ffmpeg))
    env = make_env(1, episode_length_s=0.2)
    with pytest.raises(ConfigError, match=r"film\.mp4'.*could not write"):
        record(env, Still(), tmp_path / "film.mp4", episodes=1, fps=5, size=(640, 360))


def test_a_film_is_an_mp4(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"\.mp4"):
        record(make_env(1), Still(), tmp_path / "film.avi")


def test_a_recording_keeps_whole_episodes_and_their_outcomes(monkeypatch) -> None:
    monkeypatch.setattr(recording, "_outcome", lambda env, valid: f"valid {valid}")
    env = make_env(2, episode_length_s=0.1, decision_period=1)
    taken = Recording(env, 2)
    with env.observed_by(taken):
        first = taken.play(Still())
        cut = taken.play(Still(), most_states=2)
    assert (len(first.states), first.outcome) == (1 + 2, "valid True")
    assert (len(cut.states), cut.outcome) == (2, "")
    assert not np.array_equal(first.states[-1].qpos, cut.states[0].qpos)
