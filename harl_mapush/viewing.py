"""Films of trained teams, ``--record``, and a viewer on a web page, ``--mode viewer``."""

import math
import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.policies import Policy, load_policy, policy_names
from harl_mapush.runs import run_folder
from mqe.config import ConfigError, unknown
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, make_env
from mqe.viewer.camera import CAMERAS
from mqe.viewer.player import VIEWERS, Player
from mqe.viewer.video import Film, check_name, record

FLAGS = ("size", "camera", "speed")  # for films only
SECONDS = 30.0  # [s] default limit of a film's length
_SPEEDS = (0.05, 50.0)  # least and largest
_PIXELS = (32, 7680)  # least and most along a side


def add_film_flags(parser: config.Arguments) -> None:
    """Add a film's options, except ``--record``."""
    parser.add_argument("--size", metavar="WxH", help="film size in pixels (default: 960x540)")
    parser.add_argument(
        "--camera", metavar="NAME", help=f"film camera: {', '.join(CAMERAS)} (default: follow)"
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        type=float,
        help="playback speed relative to simulated time, 0.5 for slow motion (default: 1)",
    )


def requested_film(arguments: Any) -> partial[Film] | None:
    """Return ``record`` with the arguments of the film flags, or None without ``--record``.

    Raises ConfigError for an invalid flag.
    """
    if arguments.record is None:
        for flag in FLAGS:
            if getattr(arguments, flag) is not None:
                raise ConfigError(
                    f"--{flag} {getattr(arguments, flag)}: belongs to a film; add --record FILE.mp4"
                )
        return None
    path = Path(arguments.record)
    check_name(path)
    low, high = _SPEEDS
    speed = 1.0 if arguments.speed is None else arguments.speed
    if not low <= speed <= high:
        raise ConfigError(f"--speed {speed:g}: must be from {low:g} to {high:g}")
    camera = arguments.camera or "follow"
    if camera not in CAMERAS:
        raise ConfigError(f"--camera: {unknown('camera', camera, CAMERAS)}")
    film = partial(record, path=path, angle=CAMERAS[camera], speed=speed)
    if arguments.size is not None:
        film = partial(film, size=_size(arguments.size))
    if arguments.num_episodes is None:
        return partial(film, seconds=SECONDS)
    return partial(film, episodes=arguments.num_episodes)


def film(cfg: RunCfg, team: Path | str, record_film: partial[Film]) -> Film:
    """Film a checkpoint or a named policy."""
    with closing(make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)) as env:
        title = f"seed {cfg.runner.seed}"
        return record_film(env, load_policy(team, cfg, env), title=title)


def _size(text: str) -> tuple[int, int]:
    """Parse a width and a height [pixels], such as ``960x540``."""
    low, high = _PIXELS
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    size = (0, 0) if match is None else (int(match[1]), int(match[2]))
    if not low <= min(size) <= max(size) <= high:
        raise ConfigError(
            f"--size {text}: must be two whole numbers from {low} to {high}, for example 960x540"
        )
    return size


def watch(
    cfg: RunCfg,
    team: Path | str,
    num_episodes: int | None,
    port: int | None,
    host: str | None = None,
) -> list[str]:
    """Show a checkpoint or a named policy until the viewer closes. Return the outcomes.

    The viewer also closes after ``num_episodes`` episodes. The user can switch to the run's other
    checkpoints, and to policies without training. ``port`` is the page's, 0 for a free one. None
    also opens a browser if there is a display. ``host`` is the name of a proxy's page.
    """
    if not VIEWERS:
        raise ConfigError("--mode viewer: no viewer is installed; --record FILE.mp4 makes a film")
    show = list(VIEWERS.values())[-1]  # a user's own viewer comes after the built-in one
    entry = TASKS[cfg.task.name]
    scale = None if entry.gaits is None else entry.actions(cfg.task)["scale"]
    most_episodes = math.inf if num_episodes is None else num_episodes
    with closing(make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)) as env:
        return show(Player(env, _policies(cfg, team, env), scale, most_episodes), port, host)


def _policies(cfg: RunCfg, team: Path | str, env: MultiAgentEnv) -> dict[str, Callable[[], Policy]]:
    """Return the viewer's policies by name: the run's checkpoints, and policies without
    training.
    """
    teams: dict[str, Path | str] = {}
    names = policy_names(cfg.task.name)
    if isinstance(team, str):
        if team in policy_names() and team not in names:
            raise ConfigError(unknown(f"policy of task {cfg.task.name}", team, names))
        teams[team] = team
    else:
        teams[team.name] = team
        run = run_folder.run_of(team)
        if run is not None:
            teams |= {path.name: path for _, path in run_folder.checkpoints(run)}
    teams |= {name: name for name in names}
    return {name: partial(load_policy, team_name, cfg, env) for name, team_name in teams.items()}
