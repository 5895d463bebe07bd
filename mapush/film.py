"""The command ``mapush film TEAM ... --out FILE``: one team, or several side by side, on film."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.evaluation.policies import policy_names
from harl_mapush.memory_plan import check_memory, plan_playing
from harl_mapush.process import library_lines, limit_threads, say, seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.viewing import filming
from harl_mapush.viewing.filming import Entrant, FilmCfg
from mqe.config import ConfigError, merge
from mqe.registry import resolve_sim
from mqe.viewer.meshes import add_looks
from mqe.viewer.video import layout

PROGRAM = "mapush film"
_TILE_SIZES = {".mp4": (480, 360), ".gif": (240, 180)}  # [pixels]
_MOST_TEAMS = 9


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="A film of a team, or of several side by side with a tile for each.",
        example="mapush film pretrained:team2 --suite team2 --out push.mp4",
    )
    parser.add_argument(
        "teams",
        metavar="TEAM",
        nargs="+",
        help="checkpoint folders, run folders, pretrained:NAME, or policies without training: "
        f"{', '.join(policy_names())}",
    )
    # --out of a training run has another meaning.
    parser.add_argument(
        "--out",
        metavar="FILE",
        dest="file",
        required=True,
        help="output file for the film, .mp4 or .gif",
    )
    parser.add_argument(
        "--num_episodes",
        metavar="N",
        type=int,
        help="number of episodes of each team (default: up to 3, in half a minute)",
    )
    filming.add_flags(parser)
    add_looks(parser)
    config.add_import(parser)
    config.add_flags(parser, ("--object", "--num_agents", "--seed", "--device", "--sim"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Film the teams in the arguments ``argv``. Return the exit code."""
    with library_lines(say):
        return config.exit_code(lambda: _film(make_parser().parse(argv)), PROGRAM)


def _film(arguments: Any) -> int:
    limit_threads()
    if arguments.num_episodes is not None and arguments.num_episodes < 1:
        raise ConfigError(f"--num_episodes {arguments.num_episodes}: must be at least 1")
    film = filming.read(arguments, arguments.file, "--out")
    if len(arguments.teams) > 1:
        film = _side_by_side(film, arguments)
    config.check_writable("out", arguments.file)
    entrants = [_entrant(name, arguments, film) for name in arguments.teams]
    seed_everything(entrants[0].cfg.runner.seed)
    if len(entrants) == 1:
        made = filming.make(entrants[0].cfg, entrants[0].team, film, say, arguments.looks)
    else:
        made = filming.make_side_by_side(entrants, film, say, arguments.looks)
    say(f"{made.path}: {made.seconds:.1f} s, {', '.join(made.outcomes) or 'no end of an episode'}.")
    return 0


def _side_by_side(film: FilmCfg, arguments: Any) -> FilmCfg:
    """Return the film with a tile for each team."""
    num_teams = len(arguments.teams)
    if num_teams > _MOST_TEAMS:
        raise ConfigError(f"{num_teams} teams: at most {_MOST_TEAMS} in one film")
    if arguments.tiles is not None:
        raise ConfigError("--tiles: several teams have a tile each; leave --tiles out")
    if arguments.size is not None:
        return film
    columns, rows = layout(num_teams)
    width, height = _TILE_SIZES[film.path.suffix]
    return replace(film, size=(columns * width, rows * height))


def _entrant(name: str, arguments: Any, film: FilmCfg) -> Entrant:
    """Return a team with its settings. Raise ConfigError if it cannot be filmed."""
    team: Path | str = name
    folder = None
    if name not in policy_names():
        team = folder = checkpoint.resolve(name)
    over = config.flag_values(arguments)
    if film.num_tiles > 1:
        over = merge({"env": {"num_envs": film.num_tiles}}, over)
    cfg = evaluation_worlds.shown(folder, over, arguments.suite)
    check_memory(plan_playing(cfg, *resolve_sim(cfg.sim)))
    return Entrant(cfg, team, name.removeprefix("pretrained:"))
