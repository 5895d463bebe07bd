"""A viewer for trained teams, on a web page: ``--mode viewer``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harl_mapush.config import RunCfg
from harl_mapush.evaluation.policies import Policy, load_policy, policy_names
from harl_mapush.runs import run_folder
from mqe.config import ConfigError, unknown
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, make_env
from mqe.viewer.player import VIEWERS, Player


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
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
        entry = TASKS[cfg.task.name]
        scale = None if entry.gaits is None else entry.actions(cfg.task)["scale"]
        most_episodes = math.inf if num_episodes is None else num_episodes
        player = Player(env, _policies(cfg, team, env), scale, most_episodes)
        return show(player, port, host)
    finally:
        env.close()


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
