"""Measure or watch a trained team: ``mapush test`` and ``mapush play``."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harl_mapush import config, viewing
from harl_mapush.config import RunCfg
from harl_mapush.evaluation import command
from harl_mapush.evaluation.policies import policy_names
from harl_mapush.process import limit_threads, say, seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import ConfigError
from mqe.registry import resolve_sim
from mqe.viewer.video import Film

MODES = ("viewer", "calculator")
FLAGS = ("--task", "--object", "--num_agents", "--num_envs", "--seed", "--device", "--sim")
SHOWN = "pretrained:cuboid"  # the team of a viewer without a checkpoint
VIEWER = ("record", "web", "host")  # flags of this mode only


def make_parser() -> config.Parser:
    """Build the command line of ``mapush test``, with the calculator and the viewer."""
    parser = config.Parser(
        prog="mapush test",
        description="Success rate and other metrics of a trained team.",
        example="mapush test pretrained:team2 --suite team2",
    )
    parser.add_argument(
        "--mode", choices=MODES, help="the default is calculator, with --record viewer"
    )
    config.add_other_test_flags(parser)
    command.add_flags(parser)
    _add_viewer(parser)
    return parser


def make_viewer_parser() -> config.Parser:
    """Build the command line of ``mapush play``, a viewer that also films."""
    parser = config.Parser(
        prog="mapush play",
        description="A team on a page in a browser, or a film of it. Without a checkpoint, --task, "
        "--object or --suite names the world for policies without training.",
        example="mapush play pretrained:team2",
    )
    parser.set_defaults(mode="viewer", **dict.fromkeys(command.FLAGS))
    _add_viewer(parser)
    return parser


def _add_viewer(parser: config.Parser) -> None:
    """Add the flags of both programs."""
    team = parser.add_mutually_exclusive_group()
    team.add_argument(
        "team",
        metavar="CHECKPOINT",
        nargs="?",
        default=argparse.SUPPRESS,  # that of --checkpoint
        help="a checkpoint folder, a run folder, pretrained:NAME, or a policy without training: "
        f"{', '.join(policy_names())}",
    )
    team.add_argument(
        "--checkpoint", dest="team", metavar="CHECKPOINT", help="the checkpoint, as a flag"
    )
    parser.add_argument(
        "--policy",
        metavar="MODULE:FUNCTION",
        help="a function of your own as the policy, from observations to actions",
    )
    parser.add_argument(
        "--num_episodes",
        metavar="N",
        type=int,
        help="number of episodes before the viewer closes, in a film, or for each seed of the "
        "calculator",
    )
    viewer = parser.add_argument_group("viewer")
    viewer.add_argument(
        "--web",
        metavar="PORT",
        type=int,
        nargs="?",
        const=0,
        help="port of the page; no browser is opened (default: the first free port from 8080)",
    )
    viewer.add_argument(
        "--host",
        metavar="NAME",
        help="name under which a proxy shows the page; with a leading dot all its subdomains",
    )
    group = parser.add_argument_group("film")
    group.add_argument(
        "--record", metavar="FILE", help="output file for a film (.mp4) in place of the viewer"
    )
    viewing.add_film_flags(group)
    worlds = parser.add_argument_group("worlds")
    config.add_import(worlds)
    config.add_flags(worlds, FLAGS)


def _episodes(outcomes: Sequence[str]) -> str:
    """Format the number of finished episodes."""
    return "1 episode" if len(outcomes) == 1 else f"{len(outcomes)} episodes"


def _show_or_measure(arguments: Any) -> int:
    """Measure or show a team. Return the exit code."""
    limit_threads()
    if arguments.team in policy_names() and arguments.policy is None:
        arguments.policy = arguments.team
        arguments.team = None
    if arguments.mode is None:
        arguments.mode = "calculator" if arguments.record is None else "viewer"
    if arguments.mode == "calculator" and arguments.suite is None and arguments.team:
        arguments.suite = config.suite_of_policy(arguments.team)
    if arguments.team is None and arguments.policy is None and not _names_a_world(arguments):
        if arguments.mode == "calculator":
            raise ConfigError(
                "CHECKPOINT is missing: give a checkpoint folder, a run folder, pretrained:NAME, "
                f"or one of {', '.join(policy_names())}; example: mapush test pretrained:team2"
            )
        arguments.team = SHOWN
        say(f"{SHOWN}, since no CHECKPOINT is named; mapush list names the others.")
    _check_mode(arguments)
    _check_viewer(arguments)
    film = viewing.requested_film(arguments)
    command.check_flags(arguments)
    folder = None
    if arguments.team is not None:
        folder = checkpoint.resolve(arguments.team)
    cfg = _settings(folder, arguments)
    sys.stderr.writelines(getattr(arguments, "notes", ()))
    if folder is None and arguments.policy is None:
        # The task's own scripts come after the policies of all tasks.
        arguments.policy = policy_names(cfg.task.name)[-1]
    _, device = resolve_sim(cfg.sim)
    # Without device_index, CUDA would allocate memory on the first GPU as well.
    with torch.accelerator.device_index(device.index):
        return _play(cfg, folder, arguments, film)


def _names_a_world(arguments: Any) -> bool:
    """Return whether a viewer or a film shows a world rather than a team."""
    world = (arguments.task, arguments.object, arguments.suite)
    return arguments.mode == "viewer" and any(name is not None for name in world)


def _check_mode(arguments: Any) -> None:
    """Raise ConfigError for the other mode's flags."""
    flags_of = {"viewer": VIEWER, "calculator": command.FLAGS}
    other = "viewer" if arguments.mode == "calculator" else "calculator"
    for flag in flags_of[other]:
        if getattr(arguments, flag) is not None:
            raise ConfigError(f"--{flag} belongs to --mode {other}, not to --mode {arguments.mode}")


def _check_viewer(arguments: Any) -> None:
    """Raise ConfigError for flags without an effect in the viewer."""
    if arguments.num_episodes is not None and arguments.num_episodes < 1:
        raise ConfigError(f"--num_episodes {arguments.num_episodes}: must be at least 1")
    if arguments.web is not None and not 0 <= arguments.web <= 65535:
        raise ConfigError(f"--web {arguments.web}: must be a port from 1 to 65535, or 0 for any")
    if arguments.record is not None and arguments.web is not None:
        raise ConfigError(
            "--web and --record exclude each other: a film opens no viewer; leave one out"
        )


def _play(cfg: RunCfg, folder: Path | None, arguments: Any, film: partial[Film] | None) -> int:
    """Film, show, examine or measure the team, by the command line's arguments."""
    for flag in ("json", "csv", "record"):
        config.check_writable(flag, getattr(arguments, flag))
    seed_everything(cfg.runner.seed)

    if film is not None:
        made = viewing.film(cfg, folder or arguments.policy, film)
        say(
            f"{made.path}: {made.seconds:.1f} s, {_episodes(made.outcomes)}: "
            f"{', '.join(made.outcomes)}."
        )
        return 0

    if arguments.mode == "viewer":
        team = folder or arguments.policy
        outcomes = viewing.watch(cfg, team, arguments.num_episodes, arguments.web, arguments.host)
        say(f"{_episodes(outcomes)}: {', '.join(outcomes) or 'none ended'}.")
        return 0

    suite = command.find_suite(cfg, arguments)
    return command.calculate(cfg, suite, folder, arguments)


def _settings(folder: Path | None, arguments: Any) -> RunCfg:
    """Return the checkpoint's settings, changed for evaluation and then by the command line."""
    over = config.flag_values(arguments)
    if arguments.mode == "viewer":
        has_suite = arguments.suite is not None  # else the worlds are those of the training
        return evaluation_worlds.settings(folder, over, num_envs=1, with_suite=has_suite)
    return evaluation_worlds.settings(folder, over)


main = config.command(make_parser)(_show_or_measure)
play = config.command(make_viewer_parser)(_show_or_measure)


if __name__ == "__main__":
    sys.exit(main())
