"""Films about a team: episodes in real time, drawn off-screen.

A film is made in two passes: the episodes are simulated and their states kept, then the states are
drawn.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import imageio_ffmpeg
import torch
from PIL import Image, ImageDraw, ImageFont

from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.viewer.camera import CAMERAS, Angle, cameras
from mqe.viewer.offscreen import SceneRenderer, choose_backend
from mqe.viewer.recording import Episode, FilmedPolicy, Recording
from mqe.world.scene import Scene

_LOG = logging.getLogger(__name__)
HOLD_S = 2.0  # [s] duration of an episode's last picture, with its outcome
_LINE_HEIGHT = 24  # lines of text that would fill a picture


class Film(NamedTuple):
    """A recorded film."""

    path: Path
    num_frames: int
    seconds: float
    outcomes: list[str]  # of episodes with an end in the film


class _Pictures(NamedTuple):
    """Size and rate of a film's pictures."""

    size: tuple[int, int]  # width and height [pixels]
    rate: float  # [Hz]
    frame_time: float  # [s] of an episode between two pictures
    angle: Angle = CAMERAS["follow"]
    title: str = ""


@torch.no_grad()
def record(
    env: MultiAgentEnv,
    policy: FilmedPolicy,
    path: str | Path,
    episodes: int = 3,
    seconds: float = math.inf,
    fps: float = 25,
    size: tuple[int, int] = (960, 540),
    angle: Angle = CAMERAS["follow"],
    title: str = "",
    speed: float = 1.0,
) -> Film:
    """Film ``episodes`` episodes of the first world, at most ``seconds`` [s], as .mp4.

    ``seconds`` cuts the first episode only; later ones are in the film if there is room for them.
    ``speed`` is film time relative to simulated time. ``fps`` is rounded to a rate of whole control
    steps. ``title`` begins every caption. Raise ConfigError if this machine cannot render.
    """
    path = Path(path)
    check_name(path)
    if min(episodes, seconds, fps, speed, *size) <= 0:
        raise ConfigError(
            "a film needs episodes, seconds, fps, speed and size above 0, not "
            f"{episodes}, {seconds}, {fps}, {speed} and {tuple(size)}"
        )
    env.check_open()
    choose_backend()  # better now than after the simulation
    stride = max(1, round(speed / (fps * env.step_dt)))
    frame_time = stride * env.step_dt
    room = seconds * speed / frame_time  # number of pictures
    played: list[Episode] = []
    recording = Recording(env, stride)
    with env.observed_by(recording):
        while len(played) < episodes and room > 0:
            episode = recording.play(policy, room)
            if played and not episode.outcome:
                break
            played.append(episode)
            room -= len(episode.states) + HOLD_S * speed / frame_time
    _LOG.info("%s: %d episodes are simulated; the film is drawn.", path, len(played))
    pictures = _Pictures(size, speed / frame_time, frame_time, angle, title)
    limit = math.ceil(seconds * pictures.rate) if math.isfinite(seconds) else None
    return _draw(path, env.scene, played, pictures, limit)


def check_name(path: Path) -> None:
    """Raise ConfigError for another kind of film than .mp4."""
    if path.suffix != ".mp4":
        raise ConfigError(f"{str(path)!r}: must end in .mp4; name another file")


def _draw(
    path: Path,
    scene: Scene,
    episodes: Sequence[Episode],
    pictures: _Pictures,
    limit: int | None = None,
) -> Film:
    """Draw episodes into a file, at most ``limit`` pictures.

    Raise ConfigError if ffmpeg fails.
    """
    writer = imageio_ffmpeg.write_frames(
        str(path),
        pictures.size,
        fps=pictures.rate,  # pyright: ignore  # ffmpeg takes any number
        quality=6,
        codec="libx264",
        macro_block_size=2,
        ffmpeg_log_level="error",
        output_params=["-movflags", "+faststart"],
    )
    num_frames = 0
    try:
        writer.send(None)
        for picture in _drawn(scene, episodes, pictures):
            if num_frames == limit:
                break
            writer.send(picture)
            num_frames += 1
        writer.close()
        num_written, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    except (OSError, RuntimeError):
        num_written = -1
    if num_written != num_frames:
        raise ConfigError(
            f"{str(path)!r}: ffmpeg could not write the film; make room there, or name another "
            "place"
        )
    outcomes = [episode.outcome for episode in episodes if episode.outcome]
    return Film(path, num_frames, num_frames / pictures.rate, outcomes)


def _drawn(scene: Scene, episodes: Sequence[Episode], pictures: _Pictures) -> Iterator[bytes]:
    """Yield all pictures of a film. An episode's last one stays, with the outcome."""
    width, height = pictures.size
    with closing(SceneRenderer(scene, pictures.size)) as renderer:
        for number, (states, outcome) in enumerate(episodes, start=1):
            views = cameras(scene, states, pictures.rate, width / height, pictures.angle)
            picture = Image.new("RGB", pictures.size)
            for k, (state, view) in enumerate(zip(states, views, strict=True)):
                words = [pictures.title, f"episode {number}", f"{k * pictures.frame_time:4.1f} s"]
                words += [f"robot{robot} is lost" for robot in state.lost]
                picture = Image.fromarray(renderer.draw(state, view))
                _write(picture, "   ".join(filter(None, words)), (8, 4), "la")
                yield picture.tobytes()
            if outcome:
                _write(picture, outcome, (8, height - 4), "ld")
                for _ in range(round(HOLD_S * pictures.rate)):
                    yield picture.tobytes()


def _write(picture: Image.Image, text: str, place: tuple[int, int], anchor: str) -> None:
    font = ImageFont.load_default(max(picture.height / _LINE_HEIGHT, 10.0))
    ImageDraw.Draw(picture).text(
        place, text, "white", font, anchor, stroke_width=1, stroke_fill="black"
    )
