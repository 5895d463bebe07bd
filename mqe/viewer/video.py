"""Films about a team: episodes in real time, drawn off-screen on all cores, one or several side by
side.

A film is made in two passes: the episodes are simulated and their states kept, then the states are
drawn.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg
import mujoco
import torch

from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.viewer.camera import CAMERAS, Angle, Camera
from mqe.viewer.looks import shown_model
from mqe.viewer.meshes import NO_MESHES, Meshes
from mqe.viewer.offscreen import choose_backend
from mqe.viewer.recording import Episode, FilmedPolicy, Recording, Round
from mqe.viewer.render_pool import FrameSpec, Picture, RenderPool, Tile

SUFFIXES = (".mp4", ".gif")
HOLD_S = 2.0  # [s] duration of an episode's last picture, with its outcome
_PALETTE_TIME = 2.0  # [s] of film for the colours of a .gif

# Present work, its progress, and its total if known
Progress = Callable[[str, float, float | None], None]


class Film(NamedTuple):
    """A recorded film."""

    path: Path
    num_frames: int
    seconds: float
    outcomes: list[str]  # of episodes with an end in the film


class FilmedTeam(NamedTuple):
    """A filmed team, with its ``num_tiles`` worlds from ``world`` on."""

    env: MultiAgentEnv
    policy: FilmedPolicy
    title: str
    meshes: Meshes = NO_MESHES
    world: int = 0
    num_tiles: int = 1


class _Cut(NamedTuple):
    """A film's lengths."""

    episodes: int
    seconds: float  # of film, at most
    fps: float  # [Hz], rounded to a rate of whole control steps
    speed: float  # in multiples of the world's own
    whole_episodes: bool  # the last one is not cut


def record(
    env: MultiAgentEnv,
    policy: FilmedPolicy,
    path: str | Path,
    episodes: int = 3,
    seconds: float = math.inf,
    fps: float = 25,
    size: tuple[int, int] = (960, 540),
    world: int = 0,
    captions: bool = True,
    tiles: tuple[int, int] = (1, 1),
    angle: Angle = CAMERAS["follow"],
    title: str = "",
    speed: float = 1.0,
    whole_episodes: bool = False,
    meshes: Meshes = NO_MESHES,
    on_progress: Progress = lambda words, done, total: None,
) -> Film:
    """Film ``episodes`` episodes, or at most ``seconds`` [s] of film, into an .mp4 or .gif file.

    ``tiles`` (columns, rows) episodes run side by side, in the worlds from ``world`` on. ``speed``
    is film time relative to simulated time. ``fps`` is rounded to a rate of whole control steps.
    With ``whole_episodes`` only the first episode may be cut by ``seconds``. ``title`` begins every
    caption. ``meshes`` are the robots' own, if there are any. Raise ConfigError if this machine
    cannot render.
    """
    frame = FrameSpec(*size, *tiles)
    num_tiles = frame.columns * frame.rows
    _check_name(Path(path))
    if not (
        episodes >= 1
        and seconds > 0.0
        and fps > 0
        and speed > 0.0
        and 0 <= world < env.num_envs
        and min(frame) > 0
    ):
        raise ConfigError(
            "a film needs episodes, seconds, fps, speed, size and tiles above 0 and a world below "
            f"{env.num_envs}, not {episodes}, {seconds}, {fps}, {speed}, {tuple(size)}, "
            f"{tuple(tiles)} and {world}"
        )
    if world + num_tiles > env.num_envs:
        raise ConfigError(
            f"{num_tiles} tiles need a world each, and there are {env.num_envs - world}; lower "
            "tiles"
        )
    env.check_open()
    team = FilmedTeam(env, policy, title, meshes, world, num_tiles)
    cut = _Cut(episodes, seconds, fps, speed, whole_episodes)
    return _film([team], Path(path), frame, cut, captions, angle, on_progress)


def record_teams(
    teams: Sequence[FilmedTeam],
    path: str | Path,
    episodes: int = 3,
    seconds: float = math.inf,
    fps: float = 25,
    size: tuple[int, int] = (960, 360),
    captions: bool = True,
    angle: Angle = CAMERAS["follow"],
    speed: float = 1.0,
    on_progress: Progress = lambda words, done, total: None,
) -> Film:
    """Film several teams side by side, a tile each, into an .mp4 or .gif file.

    Their first episodes are shown together until all have ended, then their second ones.
    ``seconds`` cuts no episode but the first. See ``record`` for the other parameters. The
    environments have one control rate.
    """
    _check_name(Path(path))
    frame = FrameSpec(*size, *layout(len(teams)))
    cut = _Cut(episodes, seconds, fps, speed, whole_episodes=True)
    return _film(teams, Path(path), frame, cut, captions, angle, on_progress)


@torch.no_grad()
def _film(
    teams: Sequence[FilmedTeam],
    path: Path,
    frame: FrameSpec,
    cut: _Cut,
    captions: bool,
    angle: Angle,
    on_progress: Progress,
) -> Film:
    """Simulate all teams' episodes, then draw them side by side."""
    step_dt = teams[0].env.step_dt
    stride = max(1, round(cut.speed / (cut.fps * step_dt)))
    rate = cut.speed / (stride * step_dt)
    most_frames = cut.seconds * rate
    choose_backend()  # better now than after the simulation
    recordings = []
    for team in teams:
        recording = Recording(team.env, stride, team.world, team.num_tiles, cut.episodes)
        with team.env.observed_by(recording):
            while not recording.is_enough(most_frames):
                recording.step(team.policy)
                on_progress("simulated", recording.time_s, None)
        recordings.append(recording)

    rounds = _side_by_side(recordings, round(HOLD_S * rate))
    if cut.whole_episodes:
        rounds = _whole(rounds, most_frames)
    num_frames = math.ceil(min(sum(map(len, rounds)), most_frames))
    cameras = []
    captioners = []
    for k, team in enumerate(teams):
        captioner = _Captioner(team.title, stride * step_dt) if captions else None
        for world in range(team.world, team.world + team.num_tiles):
            cameras.append(Camera(team.env, world, rate, frame.aspect, angle, drawn_model=k))
            captioners.append(captioner)
    models = [shown_model(team.env.scene, team.meshes) for team in teams]
    pictures = islice(_pictures(rounds, cameras, captioners), num_frames)
    _draw(path, models, frame, pictures, num_frames, rate, on_progress)
    return Film(path, num_frames, num_frames / rate, _outcomes(rounds, num_frames))


def _side_by_side(recordings: Sequence[Recording], hold_frames: int) -> list[Round]:
    """Join the rounds of several recordings, tile after tile."""
    rounds_of_each = [recording.rounds(hold_frames) for recording in recordings]
    rounds = []
    for k in range(max(map(len, rounds_of_each))):
        episodes: list[Episode | None] = []
        for recording, own_rounds in zip(recordings, rounds_of_each, strict=True):
            missing = [None] * recording.num_tiles
            episodes += own_rounds[k].episodes if k < len(own_rounds) else missing
        rounds.append(Round(episodes, hold_frames))
    return rounds


def layout(num_tiles: int) -> tuple[int, int]:
    """Return the columns and rows of tiles in one picture."""
    columns = math.ceil(math.sqrt(num_tiles))
    return columns, math.ceil(num_tiles / columns)


class _Captioner(NamedTuple):
    """Formats captions."""

    title: str
    frame_time: float  # [s] of the episode between two pictures

    def caption(self, episode: Episode, index: int) -> str:
        """Return the caption for an episode's picture ``index``."""
        words = [self.title, f"episode {episode.number}", f"{index * self.frame_time:4.1f} s"]
        return "   ".join(word for word in words if word)


def _pictures(
    rounds: list[Round], cameras: list[Camera], captioners: Sequence[_Captioner | None]
) -> Iterator[Picture]:
    """Yield each picture's tiles. Each tile has a camera and a captioner."""
    for side_by_side in rounds:
        shown: list[Tile | None] = [None] * len(cameras)
        for camera in cameras:
            camera.cut()
        for k in range(len(side_by_side)):
            for i, episode in enumerate(side_by_side.episodes):
                tile = shown[i]
                captioner = captioners[i]
                if episode is None:
                    continue
                if k < len(episode.states):
                    caption = "" if captioner is None else captioner.caption(episode, k)
                    shown[i] = cameras[i].tile(episode.states[k], caption)
                elif captioner is not None and tile is not None:
                    shown[i] = tile._replace(outcome=episode.outcome)
            yield tuple(shown)


def _whole(rounds: list[Round], most_frames: float) -> list[Round]:
    """Return the first rounds within ``most_frames`` pictures, at least one."""
    whole_rounds = rounds[:1]
    num_frames = len(rounds[0])
    for side_by_side in rounds[1:]:
        num_frames += len(side_by_side)
        if num_frames > most_frames:
            break
        whole_rounds.append(side_by_side)
    return whole_rounds


def _outcomes(rounds: list[Round], num_frames: int) -> list[str]:
    """Return the outcomes of the episodes with an end within ``num_frames`` pictures."""
    outcomes = []
    begin = 0
    for side_by_side in rounds:
        for episode in side_by_side.episodes:
            if (
                episode is not None
                and episode.outcome
                and begin + len(episode.states) <= num_frames
            ):
                outcomes.append(episode.outcome)
        begin += len(side_by_side)
    return outcomes


def _check_name(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{str(path)!r}: must end in .mp4 or .gif; name another file")


def _draw(
    path: Path,
    models: Sequence[mujoco.MjModel],
    frame: FrameSpec,
    pictures: Iterable[Picture],
    num_frames: int,
    rate: float,
    on_progress: Progress = lambda words, done, total: None,
) -> None:
    """Draw ``num_frames`` pictures, and write them into a file as they come."""
    with RenderPool(models, frame, num_frames) as pool, _ffmpeg(path, frame, rate) as write:
        for done, pixels in enumerate(pool.draw(pictures), start=1):
            write(pixels)
            on_progress("drawn", done / rate, num_frames / rate)


@contextmanager
def _ffmpeg(path: Path, frame: FrameSpec, rate: float) -> Iterator[Callable[[bytes], Any]]:
    """Yield a function that adds a drawn picture to an H.264 or GIF file.

    Raises ConfigError if ffmpeg fails.
    """
    scale = f"scale={2 * max(frame.width // 2, 1)}:{2 * max(frame.height // 2, 1)}:flags=area"
    options = [*"-c:v libx264 -pix_fmt yuv420p -preset veryfast -crf 20".split(), "-vf", scale]
    options += ["-movflags", "+faststart"]
    if path.suffix == ".gif":
        palette = f"trim=end_frame={max(round(_PALETTE_TIME * rate), 1)},palettegen=stats_mode=full"
        dither = "paletteuse=dither=bayer:bayer_scale=4:diff_mode=rectangle"
        options = ["-vf", f"{scale},split[a][b];[a]{palette}[p];[b][p]{dither}", "-loop", "0"]
    width, height = frame.drawn_size
    raw = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {rate} -i -".split()
    program = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-xerror"]
    process = subprocess.Popen([*program, *raw, *options, str(path)], stdin=subprocess.PIPE)
    assert process.stdin is not None
    has_failed = False
    try:
        yield process.stdin.write
        process.stdin.close()
    except BrokenPipeError:
        has_failed = True
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        has_failed = process.wait() != 0 or has_failed
    if has_failed:
        raise ConfigError(
            f"{str(path)!r}: ffmpeg could not write the film; make room there, or name another "
            "place"
        )
