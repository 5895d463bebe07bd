"""Train with OpenRL's own PPO, unpatched, as in MAPush.

    python examples/openrl_training.py --config examples/openrl_ppo.yaml --out results/openrl
    mapush import openrl results/openrl --out imported

It runs in an environment with OpenRL 0.2.0 (docs/guides/migrate.md shows its setup). It takes
OpenRL's flags, and those below.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

# OpenRL's modules import one another in a circle, which this order enters at the right place.
from openrl.configs.config import create_config_parser  # pyright: ignore[reportMissingImports]  # isort: skip
from openrl.modules.common import PPONet  # pyright: ignore[reportMissingImports]  # isort: skip
from openrl.runners.common import PPOAgent  # pyright: ignore[reportMissingImports]  # isort: skip
from openrl.utils.callbacks.checkpoint_callback import CheckpointCallback  # pyright: ignore[reportMissingImports]  # isort: skip

import mapush
from mapush.extensions.openrl.mapush_tasks import reference_task

CHECKPOINT_EVERY = 10_000_000  # env steps


def main(argv: Sequence[str] | None = None) -> None:
    """Train with the command line's settings. Save checkpoints and the worlds' settings."""
    parser = create_config_parser()
    parser.add_argument("--object", type=str, default="cuboid", help="pushed object")
    parser.add_argument("--num_envs", type=int, default=500, help="parallel worlds")
    parser.add_argument("--train_timesteps", type=int, default=100_000_000, help="env steps")
    parser.add_argument("--sim_device", type=str, default="auto", help="auto, cpu or cuda:K")
    parser.add_argument("--out", type=str, default="results/openrl", help="the run's folder")
    parser.add_argument(
        "--rewards", type=str, default="published", help="published, repo or default"
    )
    cfg = parser.parse_args(argv)

    task = {**reference_task(cfg.object), "rewards": cfg.rewards}
    settings = {f"task.{key}": value for key, value in task.items() if key != "name"}
    env = mapush.make(
        task["name"],
        client="openrl",
        num_envs=cfg.num_envs,
        seed=cfg.seed,
        settings={**settings, "sim.device": cfg.sim_device},
    )
    sys.stdout.write(
        f"Rewards {task['rewards']}: 20,000 times the scales in MAPush's files (--rewards repo).\n"
        if task["rewards"] == "published"
        else f"Rewards {task['rewards']}.\n"
    )
    env.save_settings(Path(cfg.out))
    agent = PPOAgent(PPONet(env, cfg=cfg, device="cpu"))
    checkpoints = Path(cfg.out, "checkpoints")
    every = max(1, CHECKPOINT_EVERY // cfg.num_envs)
    agent.train(cfg.train_timesteps, callback=CheckpointCallback(every, str(checkpoints)))
    agent.save(str(checkpoints / f"rl_model_{cfg.train_timesteps}_steps"))
    env.close()


if __name__ == "__main__":
    main()
