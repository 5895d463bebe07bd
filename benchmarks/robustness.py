"""Measure a team in worlds that differ from those it is measured in by default, one JSON line each.

``python benchmarks/robustness.py [--checkpoint NAME ...] [--num_envs 300] [--seeds 0 ...] [--only NAME ...]`` runs one
episode in every world under each condition and pools the seeds: object mass, friction, far goals, noisy observations,
late commands and joints, kicks, an agent that stands for a while, and success within half a metre. All of them are
settings that a run can also be trained with (``env.randomize``, ``task``).
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from measuring import emit, lines_of_simulators

from harl_mapush import checkpoint, config
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.interop import harl_format
from harl_mapush.policy import load_team
from mqe.config import merge, to_dict
from mqe.nature import NatureCfg
from mqe.registry import make_env
from mqe.scene import STEP_DT
from mqe.tasks.push import PushCfg
from mqe.tasks.push.report import summarize

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
    "collapse_rate", "tangle_rate", "timeout_rate", "num_broken", "goal_direction_chi2",
    "lesser_contact_share",
)  # fmt: skip


def main() -> int:
    """Print a line a condition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", nargs="+", default=["pretrained:cuboid"])
    parser.add_argument("--num_envs", type=int, default=300, help="episodes a seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", choices=CONDITIONS, default=list(CONDITIONS), metavar="NAME")
    arguments = parser.parse_args()
    harl_format.register()
    with lines_of_simulators():
        for what in arguments.checkpoint:
            for name in arguments.only:
                figures = measure(what, name, arguments.num_envs, arguments.seeds, arguments.device)
                emit(part="robustness", checkpoint=what, condition=name, seeds=arguments.seeds, **figures)
    return 0


def measure(what: str, condition: str, num_envs: int, seeds: list[int], device: str) -> dict[str, Any]:
    """Return the pooled figures of a team's first episodes under one condition."""
    folder = checkpoint.resolve(what)
    plain = {
        "env": {"num_envs": num_envs, "randomize": to_dict(NatureCfg())},
        "sim": {"name": "auto", "device": device},
        "task": {
            "spawn": "separated", "close_share": 0.0, "tangled_share": 0.0, "success_radius": PushCfg.success_radius,
            "goal_distance": list(PushCfg.goal_distance),
        },
    }  # fmt: skip
    cfg, _ = config.resolve(checkpoint.read_config(folder), merge(plain, CONDITIONS[condition]))
    pooled: list[dict[str, torch.Tensor]] = []
    for seed in seeds:
        env = make_env(cfg.env, cfg.sim, cfg.task, seed)
        pooled.append(first_episodes(env, load_team(cfg, folder, env)))
        env.close()
    episodes = {name: torch.cat([part[name] for part in pooled]) for name in pooled[0]}
    figures = summarize(episodes, time_limit_s=cfg.task.episode_length_s, step_dt=STEP_DT)
    shares = [value for name, value in figures.items() if name.startswith("contact_share_agent")]
    return {"num_episodes": figures["num_episodes"], **{key: figures[key] for key in KEYS}, "contact_shares": shares}


if __name__ == "__main__":
    sys.exit(main())
