"""A viewer for trained teams, in a window or on a web page: ``--mode viewer``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor

from harl_mapush.config import RunCfg
from harl_mapush.runs import run_folder
from harl_mapush.runs.policy import load_team
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.viewer import window
from mqe.viewer.player import Player, random_actions, zero_actions

AGENTS = ("trained", "zero", "random")


def watch(
    cfg: RunCfg,
    folder: Path,
    agent: str,
    num_episodes: int | None,
    port: int | None,
    say: Callable[[str], None],
) -> list[str]:
    """Show the checkpoint in ``folder`` until the viewer closes; return the episodes' outcomes.

    The viewer also closes once ``num_episodes`` have ended. It begins with ``agent``, one of
    ``AGENTS``; the user can switch to the run's other checkpoints. ``port`` is the port of the web
    page (0: any free port); None opens a window if there is a display.
    """
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
        policies = _policies(cfg, folder, env)
        own = folder.name
        first = own if agent == "trained" else f"{agent} actions"
        ordered = {first: policies[first], **policies}
        scale = getattr(cfg.task, "action_scale", None)
        most_episodes = math.inf if num_episodes is None else num_episodes
        player = Player(env, ordered, scale, most_episodes)
        if port is None and window.has_display():
            return window.show(player)
        from mqe.viewer import studio  # some builds of MuJoCo lack its module

        return studio.show(player, port or 0, say)
    finally:
        env.close()


def _policies(
    cfg: RunCfg, folder: Path, env: MultiAgentEnv
) -> dict[str, Callable[[], Callable[[Tensor], Tensor]]]:
    """Return the viewer's policies by name: the run's checkpoints, zero and random actions."""
    folders = [folder]
    if folder.parent.name == run_folder.CHECKPOINTS:
        folders += [
            path for _, path in run_folder.checkpoints(folder.parent.parent) if path != folder
        ]
    made: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
        path.name: partial(load_team, cfg, path, env) for path in folders
    }
    return made | {
        "zero actions": partial(zero_actions, env),
        "random actions": partial(random_actions, env, cfg.runner.seed),
    }
