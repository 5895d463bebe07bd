"""Films from the command line: ``--record``, its flags, and a film's progress."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.policies import load_policy
from mqe.config import ConfigError
from mqe.registry import make_env
from mqe.viewer.camera import CAMERAS, Angle
from mqe.viewer.meshes import chosen
from mqe.viewer.video import SUFFIXES, Film, FilmedTeam, record, record_teams

FLAGS = ("size", "camera", "tiles", "speed", "fps", "title", "no_captions")  # for films only
EPISODES = 3  # default for a film without tiles; a film with tiles has one for each
SECONDS = 30.0  # [s] default limit of a film's length
SIZES = {".mp4": (960, 540), ".gif": (480, 270)}  # [pixels]; a .gif file is ten times larger
RATES = {".mp4": 25.0, ".gif": 12.0}  # [Hz]
_SPEEDS = (0.05, 50.0)  # least and largest
_FPS = (1.0, 100.0)  # [Hz] least and largest
_MOST_PIXELS = 7680  # along a side
_MOST_TILES = 64  # in all
_INTERVAL_S = 3.0  # between two lines on the progress of a film


@dataclass(frozen=True)
class FilmCfg:
    """A film's file, size, tiles, camera, speed and captions."""

    path: Path
    size: tuple[int, int]
    tiles: tuple[int, int]
    angle: Angle
    episodes: int
    seconds: float = math.inf  # of the film, at most
    speed: float = 1.0  # in multiples of the world's own
    fps: float = 25.0  # [Hz]
    title: str | None = None  # begins every caption; None: the seed
    has_captions: bool = True

    @property
    def num_tiles(self) -> int:
        """Number of worlds side by side."""
        return self.tiles[0] * self.tiles[1]


def add_flags(parser: config.Arguments) -> None:
    """Add a film's options, except ``--record``."""
    parser.add_argument(
        "--size", metavar="WxH", help="film size in pixels (default: 960x540, for a .gif 480x270)"
    )
    parser.add_argument(
        "--camera",
        metavar="NAME",
        help=f"film camera: {', '.join(CAMERAS)}, or azimuth,elevation[,distance] in degrees and "
        "metres",
    )
    parser.add_argument(
        "--tiles", metavar="CxR", help="columns x rows of episodes side by side, for example 3x3"
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        type=float,
        help="playback speed relative to simulated time, 0.5 for slow motion (default: 1)",
    )
    parser.add_argument(
        "--fps", metavar="N", type=float, help="pictures per second (default: 25, for a .gif 12)"
    )
    parser.add_argument("--title", metavar="TEXT", help="text at the start of every caption")
    parser.add_argument(
        "--no_captions",
        action="store_const",
        const=True,
        help="a film without captions",
    )


def asked_for(arguments: Any) -> FilmCfg | None:
    """Return the requested film for ``--record``, if any. Raise ConfigError for an invalid one."""
    if arguments.record is not None:
        return read(arguments, arguments.record, "--record")
    for flag in FLAGS:
        if getattr(arguments, flag) is not None:
            value = "" if flag == "no_captions" else f" {getattr(arguments, flag)}"
            raise ConfigError(f"--{flag}{value}: belongs to a film; add --record FILE.mp4")
    return None


def read(arguments: Any, name: str, flag: str) -> FilmCfg:
    """Return the film in the file ``name`` from ``flag``. Raise ConfigError for an invalid film."""
    path = Path(name)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{flag} {name!r}: must end in .mp4 or .gif; name another file")

    size = SIZES[path.suffix]
    if arguments.size is not None:
        size = _pair("--size", arguments.size, "960x540", _MOST_PIXELS)
    tiles = (1, 1)
    episodes = EPISODES
    seconds = SECONDS
    if arguments.tiles is not None:
        tiles = _pair("--tiles", arguments.tiles, "3x3", _MOST_TILES)
        episodes = tiles[0] * tiles[1]
    if arguments.num_episodes is not None:
        episodes = arguments.num_episodes
        seconds = math.inf

    if tiles[0] * tiles[1] > _MOST_TILES:
        raise ConfigError(f"--tiles {arguments.tiles}: at most {_MOST_TILES} tiles")
    if size[0] // tiles[0] < 32 or size[1] // tiles[1] < 32:
        raise ConfigError(
            f"--size {size[0]}x{size[1]}: every tile needs at least 32x32 pixels; name a larger "
            "size"
        )
    angle = CAMERAS["follow"] if arguments.camera is None else _angle(arguments.camera)
    speed = 1.0 if arguments.speed is None else _number("--speed", arguments.speed, _SPEEDS)
    fps = RATES[path.suffix] if arguments.fps is None else _number("--fps", arguments.fps, _FPS)
    if arguments.no_captions and arguments.title is not None:
        raise ConfigError("--title and --no_captions exclude each other; leave one out")
    return FilmCfg(
        path,
        size,
        tiles,
        angle,
        episodes,
        seconds,
        speed,
        fps,
        arguments.title,
        has_captions=not arguments.no_captions,
    )


def make(
    cfg: RunCfg,
    team: Path | str,
    film: FilmCfg,
    say: Callable[[str], None],
    looks: str | None = None,
) -> Film:
    """Film a checkpoint or a named policy. ``say`` receives lines of progress.

    See ``meshes.chosen`` for ``looks``.
    """
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
        policy = load_policy(team, cfg, env)
        meshes = chosen(looks, env.scene.robots)
        return record(
            env,
            policy,
            film.path,
            film.episodes,
            film.seconds,
            fps=film.fps,
            size=film.size,
            tiles=film.tiles,
            angle=film.angle,
            captions=film.has_captions,
            title=f"seed {cfg.runner.seed}" if film.title is None else film.title,
            speed=film.speed,
            whole_episodes=True,
            meshes=meshes,
            on_progress=_Progress(say),
        )
    finally:
        env.close()


class Entrant(NamedTuple):
    """One team in a film with several: its settings, its checkpoint or policy, and its name."""

    cfg: RunCfg
    team: Path | str
    name: str


def make_side_by_side(
    entrants: Sequence[Entrant],
    film: FilmCfg,
    say: Callable[[str], None],
    looks: str | None = None,
) -> Film:
    """Film several teams, a tile each, in environments of their own.

    See ``meshes.chosen`` for ``looks``.
    """
    with ExitStack() as stack:
        teams = []
        for cfg, team, name in entrants:
            env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
            stack.callback(env.close)
            words = [film.title, name] if film.title is not None else [name]
            meshes = chosen(looks, env.scene.robots)
            policy = load_policy(team, cfg, env)
            teams.append(FilmedTeam(env, policy, "   ".join(words), meshes))
        return record_teams(
            teams,
            film.path,
            film.episodes,
            film.seconds,
            fps=film.fps,
            size=film.size,
            captions=film.has_captions,
            angle=film.angle,
            speed=film.speed,
            on_progress=_Progress(say),
        )


class _Progress:
    """Writes a film's progress every few seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._words = ""
        self._begun = self._said = time.monotonic()

    def __call__(self, words: str, done: float, total: float | None) -> None:
        """Write ``done`` seconds out of ``total``."""
        now = time.monotonic()
        if words != self._words:
            self._words = words
            self._begun = now
        if now - self._said >= _INTERVAL_S:
            self._said = now
            left = ""
            if total is not None:
                seconds = (now - self._begun) * (total / done - 1)
                left = f" of {total:.0f} s, {seconds:.0f} s left"
            self._say(f"Film: {done:.1f} s {words}{left}")


def _pair(flag: str, text: str, example: str, largest: int) -> tuple[int, int]:
    """Parse two whole numbers from 1 to ``largest``, such as ``960x540``."""
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    values = (0, 0) if match is None else (int(match[1]), int(match[2]))
    if not all(1 <= value <= largest for value in values):
        raise ConfigError(
            f"{flag} {text}: must be two whole numbers from 1 to {largest}, for example {example}"
        )
    return values


def _number(flag: str, value: float, limits: tuple[float, float]) -> float:
    low, high = limits
    if not low <= value <= high:
        raise ConfigError(f"{flag} {value:g}: must be from {low:g} to {high:g}")
    return value


def _angle(text: str) -> Angle:
    if text in CAMERAS:
        return CAMERAS[text]
    try:
        azimuth, elevation, *rest = (float(part) for part in text.split(","))
        angle = Angle(azimuth, elevation, *rest)
    except (TypeError, ValueError):
        raise ConfigError(
            f"--camera {text}: no such camera; name one of {', '.join(CAMERAS)}, or "
            "azimuth,elevation[,distance] in degrees and metres"
        ) from None
    distance = 1.0 if angle.distance is None else angle.distance
    if not (-360.0 <= azimuth <= 360.0 and -90.0 <= elevation <= 90.0 and 0.1 <= distance <= 100.0):
        raise ConfigError(
            f"--camera {text}: azimuth must be from -360 to 360 degrees, elevation from -90 to 90 "
            "degrees, distance from 0.1 to 100 m"
        )
    return angle
