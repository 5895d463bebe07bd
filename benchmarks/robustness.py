"""Measure a team in worlds that differ from those it is measured in by default, one JSON line each.

``python benchmarks/robustness.py [--checkpoint pretrained:cuboid] [--num_envs 300] [--seed 0] [--only NAME ...]`` runs
one episode in every world under each condition: object mass, friction, far goals, noisy observations, late commands and
joints, kicks, an agent that stands for a while, and success within half a metre. All of them are settings that a run
can also be trained with (``env.randomize``, ``task``).
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from measuring import emit, lines_of_simulators

from harl_mapush import checkpoint, config
from harl_mapush.evaluation import evaluate_push
from harl_mapush.policy import load_team
from mqe.config import merge, to_dict
from mqe.nature import NatureCfg
from mqe.registry import make_env
from mqe.tasks.push import PushCfg

FAR = {"goal_distance": [3.0, 6.0], "episode_length_s": 40.0}
CONDITIONS: dict[str, dict[str, Any]] = {
    "separated": {},
    "independent": {"task": {"spawn": "independent"}},
    "within 0.5 m": {"task": {"success_radius": 0.5}},
    "mass x0.5": {"env": {"randomize": {"object_mass": 0.5}}},
    "mass x2": {"env": {"randomize": {"object_mass": 2.0}}},
    "mass x3": {"env": {"randomize": {"object_mass": 3.0}}},
    "friction x0.5": {"env": {"randomize": {"ground_friction": 0.5}}},
    "friction x1.5": {"env": {"randomize": {"ground_friction": 1.5}}},
    "goal 3 to 6 m, 40 s": {"task": FAR},
    "observation noise 0.05": {"env": {"randomize": {"observation_noise": 0.05}}},
    "command and joints 40 ms late": {"env": {"randomize": {"action_latency": 0.04, "command_latency": 0.04}}},
    "kicks of 1 m/s every 2 s": {"env": {"randomize": {"kick_speed": 1.0, "kick_interval": 2.0}}},
    "one robot stands for 2 s": {"env": {"randomize": {"freeze_time": 2.0}}},
}
KEYS = (
    "success_rate", "success_ci95", "success_rate_spawned", "time_given_success_s", "fall_rate", "collision_rate",
    "collapse_rate", "tangle_rate", "timeout_rate", "num_broken",
)  # fmt: skip


def main() -> int:
    """Print a line a condition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="pretrained:cuboid")
    parser.add_argument("--num_envs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", choices=CONDITIONS, default=list(CONDITIONS), metavar="NAME")
    arguments = parser.parse_args()
    folder = checkpoint.resolve(arguments.checkpoint)
    own = checkpoint.read_config(folder)
    plain = {
        "env": {"num_envs": arguments.num_envs, "randomize": to_dict(NatureCfg())},
        "sim": {"name": "auto", "device": arguments.device},
        "task": {
            "spawn": "separated", "close_share": 0.0, "tangled_share": 0.0, "success_radius": PushCfg.success_radius,
            "goal_distance": list(PushCfg.goal_distance),
        },
    }  # fmt: skip
    with lines_of_simulators():
        for name in arguments.only:
            cfg, _ = config.resolve(own, merge(plain, CONDITIONS[name]))
            env = make_env(cfg.env, cfg.sim, cfg.task, arguments.seed)
            figures = evaluate_push(env, load_team(cfg, folder, env))
            env.close()
            shares = [figures[f"contact_share_agent{agent}"] for agent in range(env.num_agents)]
            emit(
                part="robustness",
                checkpoint=arguments.checkpoint,
                condition=name,
                num_episodes=figures["num_episodes"],
                seed=arguments.seed,
                **{key: figures[key] for key in KEYS},
                contact_shares=shares,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
