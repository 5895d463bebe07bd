"""Measure a team or a gait in this world and with a maker's own robots: ``mapush sim2sim``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.episodes import Request, add_request_flags, check_request
from harl_mapush.evaluation.measuring import headline, measure_all, report_of, with_interval
from harl_mapush.process import library_lines, limit_threads, seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.test import EXAMINATIONS
from mqe.config import ConfigError, merge
from mqe.controllers.gait import gait_names
from mqe.registry import TASKS, resolve_sim
from mqe.tasks.episode_report import format_metric
from mqe.world.robots import MODELS, robots_of

PROGRAM = "mapush sim2sim"
NUM_EPISODES = 300  # of each seed and world
_WORLDS = ("ours", "theirs")
_WIDTHS = (32, 30)  # characters of a table's columns


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Metrics of a team or a gait in this world, and with robots and contacts of "
        "their maker's simulator.",
        example="mapush sim2sim pretrained:cuboid unitree_mujoco --set env.robots=go2",
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a checkpoint folder, a run folder or pretrained:NAME",
    )
    parser.add_argument(
        "model", metavar="PATH", help="a checkout of unitree_mujoco, or the MJCF of a robot"
    )
    parser.add_argument(
        "--num_episodes",
        metavar="N",
        type=int,
        default=NUM_EPISODES,
        help=f"episodes of a team for each seed, in each world (default: {NUM_EPISODES})",
    )
    add_request_flags(parser)
    parser.set_defaults(seeds=[0])
    parser.add_argument("--json", metavar="FILE", help="file for the metrics of both worlds")
    config.add_import(parser)
    config.add_flags(parser, ("--num_envs", "--device", "--sim"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure in both worlds as the command line says; return the exit code."""
    with library_lines(_say):
        return config.exit_code(lambda: _main(make_parser().parse(argv)), PROGRAM)


def _main(arguments: Any) -> int:
    limit_threads()
    check_request(arguments.seeds, arguments.num_episodes, arguments.workers)
    config.check_writable("json", arguments.json)
    folder = checkpoint.resolve(arguments.checkpoint)
    over = config.flag_values(arguments)
    if "seed" in (over.get("runner") or {}):
        raise ConfigError("runner.seed and --seeds exclude each other; use --seeds alone")

    ours = evaluation_worlds.settings(folder, over)
    theirs = evaluation_worlds.settings(folder, merge(over, _their_world(ours, arguments.model)))
    _say(f"ours: env.model={ours.env.model}; theirs: {theirs.env.model}")
    if TASKS[ours.task.name].examination is None:
        measured = _measure_teams((ours, theirs), folder, arguments)
    else:
        measured = _examine((ours, theirs), folder)
    if arguments.json is not None:
        text = json.dumps(dict(zip(_WORLDS, measured, strict=True)), indent=2, allow_nan=False)
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    return 0


def _their_world(ours: RunCfg, model: str) -> dict[str, Any]:
    """Return the settings of the maker's world; robots keep the gaits that they have in ours."""
    if model in MODELS:
        raise ConfigError(f"PATH {model!r}: name a checkout of unitree_mujoco, or an MJCF")
    if ours.env.model not in MODELS:
        raise ConfigError(
            f"env.model={ours.env.model}: our own world is one of {', '.join(MODELS)}; leave it "
            "out, PATH names the maker's"
        )
    assert ours.env.num_agents is not None  # config.resolve sets it
    robots = robots_of(ours.env.robots, ours.env.num_agents, ours.env.model)
    changed: dict[str, Any] = {"env": {"model": model}}
    if hasattr(ours.task, "gait"):
        changed["task"] = {"gait": gait_names(ours.task.gait, robots)}
    # Told before the first world is measured.
    robots_of(ours.env.robots, ours.env.num_agents, model)
    return changed


def _measure_teams(worlds: Sequence[RunCfg], folder: Path, arguments: Any) -> list[dict[str, Any]]:
    """Measure a team in both worlds from the same starts; print its rates and their difference."""
    num_envs = None if arguments.num_envs is None else worlds[0].env.num_envs
    requests = [
        Request(cfg, tuple(arguments.seeds), arguments.num_episodes, folder, num_envs=num_envs)
        for cfg in worlds
    ]
    measured = list(measure_all(requests, arguments.workers or 0, _say))
    _say(_row("", _WORLDS))
    for name in report_of(worlds[0]).rates:
        _say(_row(name, [with_interval(metrics, f"{name}_rate") for metrics in measured]))
    name = headline(worlds[0])
    interval = f"{name.removesuffix('_rate')}_ci95"
    if interval in measured[0]:
        low, high = difference_interval(*((each[name], *each[interval]) for each in measured))
        difference = measured[1][name] - measured[0][name]
        _say(
            f"{name}: theirs - ours = {difference:+.3f} ({low:+.3f} to {high:+.3f}), "
            f"n = {measured[0]['num_episodes']} each"
        )
    return measured


def _examine(worlds: Sequence[RunCfg], folder: Path) -> list[dict[str, Any]]:
    """Examine a gait in both worlds; print its metrics side by side."""
    examine = EXAMINATIONS[TASKS[worlds[0].task.name].examination]
    measured = []
    for name, cfg in zip(_WORLDS, worlds, strict=True):
        _say(f"World: {name}")
        device = resolve_sim(cfg.sim)[1]
        seed_everything(cfg.runner.seed)
        with torch.accelerator.device_index(device.index):
            measured.append(examine(cfg, folder, device))
    _say(_row("", _WORLDS))
    for name in measured[0]:
        _say(_row(name, [format_metric(metrics[name]) for metrics in measured]))
    return measured


def difference_interval(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float]:
    """Return the 95 % interval of ``second`` - ``first``, two shares with their own Wilson
    intervals (share, low, high) (Newcombe 1998, method 10).
    """
    share, low, high = first
    other_share, other_low, other_high = second
    difference = other_share - share
    below = math.hypot(other_share - other_low, high - share)
    above = math.hypot(other_high - other_share, share - low)
    return difference - below, difference + above


def _row(label: str, cells: Sequence[str]) -> str:
    first, width = _WIDTHS
    return f"{label:<{first}}{''.join(f'{cell:<{width}}' for cell in cells)}".rstrip()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
