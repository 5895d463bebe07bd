"""Measure policies that MAPush published in this project's world, one JSON line each.

``python benchmarks/sim_to_sim.py FOLDER [--num_envs 300] [--seed 0] [--set task.KEY=VALUE ...]``
measures every
``module.pt`` under a checkout of MAPush, the longest trained first, as ``mapush test --checkpoint``
does: one episode
in every world, no action noise.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import reduce
from pathlib import Path

from measuring import emit, lines_of_simulators

from harl_mapush.evaluation.calculator import evaluate
from harl_mapush.process import seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.policy import load_team
from mapush.extensions.openrl import openrl_format  # noqa: F401, registers
from mapush.extensions.openrl.openrl_files import MODULE
from mqe.config import assignment, merge
from mqe.registry import make_env

KEYS = (
    "success_rate",
    "success_ci95",
    "num_episodes",
    "lost_at_spawn_rate",
    "time_given_success_s",
    "finished_time_s",
    "collision_rate",
    "fall_rate",
    "collapse_rate",
    "tangle_rate",
    "timeout_rate",
    "num_broken",
    "collaboration_degree",
    "collaboration_degree_reference",
    "lesser_contact_share",
)


def main() -> int:
    """Print a line a policy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num_envs", type=int, default=300, help="worlds, an episode each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    over = {"env": {"num_envs": arguments.num_envs}, "runner": {"seed": arguments.seed}}
    over = reduce(merge, [assignment(text) for text in arguments.set], over)
    with lines_of_simulators():
        for path in sorted(
            arguments.folder.rglob(MODULE), key=openrl_format.env_steps_of, reverse=True
        ):
            started = time.perf_counter()
            folder = checkpoint.resolve(str(path.parent))
            cfg = evaluation_worlds.settings(folder, over)
            seed_everything(cfg.runner.seed)
            env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
            figures = evaluate(env, load_team(cfg, folder, env))
            env.close()
            emit(
                part="sim_to_sim",
                object=cfg.task.object,
                env_steps=openrl_format.env_steps_of(path),
                **{key: figures[key] for key in KEYS},
                seconds=round(time.perf_counter() - started, 1),
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
