"""Films: the OpenGL backend, the camera's view, and a short film read back from its file."""

from __future__ import annotations

import math
import subprocess
import sys

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.sim.simulator import snapshot
from mqe.viewer import looks, offscreen, recording, render_pool, video
from mqe.viewer.camera import CAMERAS, MARGIN, Camera, ShownState
from mqe.viewer.offscreen import choose_backend
from mqe.viewer.render_pool import FrameSpec, Picture, Renderer, RenderPool, Tile
from mqe.viewer.video import FilmedTeam, record, record_teams
from tests.support.pushing import make_env
from tests.support.rounding import FEW_STEPS


class Still:
    """A standing policy with a count for finished episodes."""

    forgotten = 0

    def __call__(self, obs: Tensor) -> Tensor:
        return torch.zeros(*obs.shape[:2], 3)

    def reset_memory(self, done: Tensor) -> None:
        self.forgotten += int(done.sum())


@pytest.fixture
def no_choice_yet(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    choose_backend.cache_clear()
    yield monkeypatch
    choose_backend.cache_clear()


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


@pytest.mark.parametrize("backend", ["off", "glfw"])
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


@pytest.mark.parametrize(("name", "num_agents"), [("cuboid", 2), ("cylinder", 4)])
def test_everything_is_in_the_picture(name: str, num_agents: int) -> None:
    env = make_env(3, num_agents, object=name)
    env.reset()
    for world in range(3):
        camera = Camera(env, world, rate=25.0, aspect=16 / 9)
        data = snapshot(env.sim, world)
        camera.look(data)
        azimuth = math.radians(camera.view.azimuth)
        elevation = math.radians(camera.view.elevation)
        ahead = np.array(
            [
                math.cos(elevation) * math.cos(azimuth),
                math.cos(elevation) * math.sin(azimuth),
                math.sin(elevation),
            ]
        )
        eye = camera.view.lookat - camera.view.distance * ahead
        across = np.cross(ahead, [0.0, 0.0, 1.0])
        across /= np.linalg.norm(across)
        half_height = math.tan(math.radians(env.sim.model.vis.global_.fovy / 2))
        bodies = [*(f"robot{i}/trunk" for i in range(num_agents)), "object", "goal"]
        for offset in (data.body(body).xpos - eye for body in bodies):
            depth = offset @ ahead
            assert abs(offset @ across) + MARGIN <= depth * half_height * 16 / 9 + FEW_STEPS
            assert abs(offset @ np.cross(across, ahead)) + MARGIN <= depth * half_height + FEW_STEPS


@pytest.mark.usefixtures("can_render")
@pytest.mark.parametrize("name", ["cylinder", "tblock"])
def test_the_top_of_an_object_far_from_the_goal_has_no_dots(name: str) -> None:
    env = make_env(1, 2, object=name)
    env.reset()
    qpos = env.sim.data.qpos[0].numpy().astype(np.float64)
    goal = env.sim.data.mocap_pos[0].numpy().astype(np.float64)
    at = env.scene.robot_qpos
    goal[0, :2] = qpos[at : at + 2] + 4.5  # [m]
    frame = FrameSpec(960, 540)
    camera = Camera(env, 0, 25.0, frame.aspect)
    renderer = Renderer([looks.shown_model(env.scene)], frame)
    pixels = np.frombuffer(renderer.draw([camera.tile(ShownState(qpos, goal))]), np.uint8)
    renderer.close()
    width, height = frame.drawn_size
    picture = pixels.reshape(height, width, 3).astype(int)
    is_top = np.abs(picture - (217, 168, 103)).max(axis=-1) < 25
    dots = ~is_top[:, 1:-1] & is_top[:, :-2] & is_top[:, 2:]
    assert is_top.sum() > 1000
    assert dots.sum() == 0


def test_a_large_object_that_moves_fast_stays_in_the_picture() -> None:
    env = make_env(1, 2, object="cylinder")
    env.reset()
    camera = Camera(env, 0, rate=25.0, aspect=16 / 9)
    qpos = env.sim.data.qpos[0].numpy().astype(np.float64)
    goal = env.sim.data.mocap_pos[0].numpy().astype(np.float64)
    at = env.scene.robot_qpos
    angles = np.linspace(0.0, 2.0 * np.pi, 16)
    rim = np.stack((1.5 * np.cos(angles), 1.5 * np.sin(angles), 0.25 + 0 * angles), axis=-1)
    half_size = camera._half_size
    for _ in range(50):
        qpos[at : at + 2] += (0.1, 0.08)  # [m]
        camera.tile(ShownState(qpos, goal))
        view = camera.view
        offset = qpos[at : at + 3] + rim - (view.lookat - view.distance * camera._axes[2])
        depth = offset @ camera._axes[2]
        assert (np.abs(offset @ camera._axes[:2].T) <= depth[:, None] * half_size).all()


def test_the_camera_moves_smoothly_and_cuts_between_episodes() -> None:
    env = make_env(2)
    env.reset()
    camera = Camera(env, 0, rate=25.0, aspect=16 / 9)
    first, second = (snapshot(env.sim, world) for world in (0, 1))
    camera.look(first)
    start = camera.view.lookat.copy()
    camera.look(second)
    step = np.linalg.norm(camera.view.lookat - start)
    camera.cut()
    camera.look(second)
    jump = np.linalg.norm(camera.view.lookat - start)
    assert 0.0 < step < 0.1 * jump


@pytest.fixture
def can_render() -> None:
    try:
        choose_backend()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("can_render")
def test_a_short_film(tmp_path) -> None:
    env = make_env(2, episode_length_s=0.4, decision_period=5)
    sim = env.sim
    policy = Still()
    film = record(env, policy, tmp_path / "film.mp4", episodes=1, fps=25, size=(160, 96), world=1)
    assert env.sim is sim
    # An episode: the start, 10 of 20 control steps, and two seconds of the last picture.
    assert film.num_frames == 1 + 10 + 50
    assert film.seconds == pytest.approx(61 / 25)
    assert film.outcomes == ["time is up"]
    assert policy.forgotten == 2
    frames = iio.imread(film.path)
    assert frames.shape == (61, 96, 160, 3)
    assert iio.immeta(film.path)["fps"] == 25
    assert frames[0].std() > 15  # something is there
    blue = frames[5, ..., 2].astype(int)
    red = frames[5, ..., 0].astype(int)
    assert (red - blue > 100).sum() > 20  # the goal
    assert (blue - red > 60).sum() > 5  # the first robot


@pytest.mark.usefixtures("can_render")
def test_a_film_shows_that_a_robot_collapsed(tmp_path) -> None:
    env = make_env(1)
    crouch = torch.tensor([0.0, 1.1, -2.2] * 4).expand(1, 2, 12)
    env.task._controller.targets = lambda state: crouch  # type: ignore[attr-defined]
    film = record(env, Still(), tmp_path / "film.mp4", episodes=1, fps=5, size=(160, 96))
    assert film.outcomes == ["a robot collapsed"]


@pytest.mark.usefixtures("can_render")
def test_a_film_of_some_seconds_at_half_the_speed(tmp_path) -> None:
    env = make_env(1, decision_period=1)
    name = tmp_path / "film.mp4"
    film = record(env, Still(), name, seconds=0.4, fps=25, size=(96, 64), speed=0.5, captions=False)
    assert film.num_frames == 10  # of as many control steps of 0.02 s
    assert film.outcomes == []
    assert iio.immeta(film.path)["fps"] == 25


def test_a_film_ends_with_the_last_episode_that_it_has_room_for() -> None:
    episodes = [recording.Episode(k, [None] * 10) for k in range(3)]  # type: ignore[list-item]
    rounds = [recording.Round([episode], 5) for episode in episodes]
    lengths = [len(video._whole(rounds, limit)) for limit in (8, 15, 29, 30, math.inf)]
    assert lengths == [1, 1, 1, 2, 3]


@pytest.mark.usefixtures("can_render")
def test_teams_with_worlds_of_their_own_are_side_by_side(tmp_path) -> None:
    short = make_env(1, 2, object="tblock", episode_length_s=0.2, decision_period=1)
    long = make_env(1, 3, object="cylinder", episode_length_s=0.4, decision_period=1)
    teams = [FilmedTeam(short, Still(), "two"), FilmedTeam(long, Still(), "three")]
    size = (192, 96)
    film = record_teams(teams, tmp_path / "film.mp4", episodes=1, fps=10, size=size)
    assert film.num_frames == 1 + 4 + 20
    assert film.outcomes == ["time is up"] * 2
    frames = iio.imread(film.path)
    assert frames.shape == (25, 96, 192, 3)
    left = frames[4, :, :96]
    right = frames[4, :, 96:]
    assert left.std() > 15
    assert right.std() > 15
    assert np.abs(left.astype(int) - right).max() > 50


def test_tiles_are_nearly_square() -> None:
    assert [video.layout(n) for n in (1, 2, 3, 4, 5, 9)] == [
        (1, 1),
        (2, 1),
        (2, 2),
        (2, 2),
        (3, 2),
        (3, 3),
    ]


def test_tiles_of_several_models_are_drawn_row_by_row(monkeypatch) -> None:
    """Models of gray pictures: the shade is 10 times the model's number and 10."""

    class Gray:
        def __init__(self, model: int, frame: FrameSpec) -> None:
            width, height = frame.drawn_tile
            self._pixels = np.full((height, width, 3), 10 * model + 10, np.uint8)

        def paint(self, tile) -> np.ndarray:
            return self._pixels

    monkeypatch.setattr(render_pool, "_Painter", Gray)
    frame = FrameSpec(40, 40, 2, 2)
    assert frame.drawn_size == (60, 60)
    renderer = Renderer([0, 1, 2], frame)  # type: ignore[list-item]
    tiles = [Tile(b"", b"", b"", (0.0, 0.0, 0.0), 1.0, 0.0, 0.0, model=k) for k in (0, 1, 2)]
    middles = []
    for picture in ([*tiles, None], [None, *tiles]):
        drawn = np.frombuffer(renderer.draw(picture), np.uint8).reshape(60, 60, 3)
        middles.append([int(drawn[y, x, 0]) for y in (15, 45) for x in (15, 45)])
        assert drawn[0, 0, 0] == 250  # the gap around tiles
    assert middles == [[10, 20, 30, 250], [250, 10, 20, 30]]


@pytest.mark.usefixtures("can_render")
@pytest.mark.parametrize("program", ["cat > /dev/null; exit 1", "exit 1", "exit 0"])
def test_a_film_that_was_not_written_is_no_film(program: str, monkeypatch, tmp_path) -> None:
    """A full disk: ffmpeg ends with an error, or stops taking pictures."""
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text(f"#!/bin/sh\n{program}\n")
    ffmpeg.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: str(ffmpeg))
    env = make_env(1, episode_length_s=0.2)
    with pytest.raises(ConfigError, match=r"film\.mp4'.*could not write"):
        record(env, Still(), tmp_path / "film.mp4", episodes=1, fps=10, size=(320, 180))


def test_a_film_is_an_mp4_or_a_gif(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"\.mp4 or \.gif"):
        record(make_env(1), Still(), tmp_path / "film.avi")


def test_tiles_need_a_world_each(tmp_path) -> None:
    with pytest.raises(ConfigError, match="4 tiles need a world each, and there are 2"):
        record(make_env(2), Still(), tmp_path / "film.mp4", tiles=(2, 2))


@pytest.mark.usefixtures("can_render")
def test_tiles_show_worlds_side_by_side_until_all_have_ended(tmp_path, monkeypatch) -> None:
    """The second world's episodes end early. Three episodes leave the last tile empty."""
    env = make_env(2, episode_length_s=0.4, decision_period=1)
    seen: list[Picture] = []
    draw = Renderer.draw
    monkeypatch.setattr(
        Renderer, "draw", lambda self, picture: seen.append(picture) or draw(self, picture)
    )
    monkeypatch.setattr(recording, "outcome_words", lambda env, world, valid: f"world {world}")
    decide = env.step
    ends = iter([False] * 5 + [True] + [False] * 100)

    def step(actions: Tensor):
        taken = decide(actions)
        if next(ends):
            taken = taken._replace(truncated=torch.tensor([bool(taken.truncated[0]), True]))
        return taken

    monkeypatch.setattr(env, "step", step)
    film = record(
        env,
        Still(),
        tmp_path / "film.gif",
        episodes=3,
        fps=50,
        size=(128, 48),
        tiles=(2, 1),
        title="seed 7",
    )
    assert film.outcomes == ["world 0", "world 1", "world 0"]
    assert film.num_frames == 2 * (1 + 20 + 100)
    assert iio.imread(film.path).shape[1:] == (48, 128, 3)
    early = seen[6]
    late = seen[7]
    last = seen[20]
    assert [tile.caption for tile in early] == [
        "seed 7   episode 1    0.1 s",
        "seed 7   episode 2    0.1 s",
    ]
    assert late[1] == early[1]._replace(outcome="world 1")  # stays as it is while the first goes on
    assert last[1] == late[1]
    assert last[0] != late[0]
    assert seen[-1][1] is None


def test_tiles_without_an_episode_stay_empty() -> None:
    env = make_env(3, episode_length_s=0.1, decision_period=1)
    taken = recording.Recording(env, 1, 0, 3, 2)
    with env.observed_by(taken):
        while not taken.is_enough(math.inf):
            taken.step(Still())
    (shown,) = taken.rounds(0)
    assert [episode is None for episode in shown.episodes] == [False, False, True]


@pytest.mark.usefixtures("can_render")
def test_processes_draw_what_one_does_and_one_that_dies_is_one_line(monkeypatch) -> None:
    env = make_env(1)
    env.reset()
    camera = Camera(env, 0, 25.0, 2.0)
    frame = FrameSpec(96, 48)
    state = ShownState(env.sim.data.qpos[0].numpy(), env.sim.data.mocap_pos[0].numpy())
    pictures = [[camera.tile(state, f"{k}")] for k in range(5)]
    model = looks.shown_model(env.scene)
    with RenderPool([model], frame, 5) as in_process:
        expected = list(in_process.draw(pictures))
    monkeypatch.setattr(render_pool, "_WORTHWHILE", 1)
    monkeypatch.setattr(render_pool, "num_cores", lambda: 2)
    assert len(set(expected)) == 5
    with RenderPool([model], frame, 5) as several:
        assert list(several.draw(pictures)) == expected
        several._workers[1].kill()
        several._workers[1].wait()
        with pytest.raises(ConfigError, match="a process that draws pictures has ended"):
            list(several.draw([[None]] * 9))


@pytest.mark.parametrize("name", ["top", "side", "low"])
def test_a_camera_sees_everything_from_every_angle(name: str) -> None:
    env = make_env(1)
    env.reset()
    camera = Camera(env, 0, 25.0, 16 / 9, CAMERAS[name])
    camera.look(snapshot(env.sim, 0))
    assert camera.view.elevation == CAMERAS[name].elevation
    near = Camera(env, 0, 25.0, 16 / 9, CAMERAS[name]._replace(distance=2.0))
    near.look(snapshot(env.sim, 0))
    assert near.view.distance == 2.0 < camera.view.distance
