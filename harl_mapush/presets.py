"""What a preset needs of the machine."""

from __future__ import annotations

from harl_mapush import config
from harl_mapush.callbacks.logger import duration
from harl_mapush.config import RunCfg
from mqe.config import ConfigError
from mqe.cores import num_cores
from mqe.registry import resolve_sim

GPU_WORLDS = 1024  # of a preset for GPUs, at least
CPU_SPEED = 3800.0  # env steps/s that a core manages, with two robots (preset laptop)


def check_preset(name: str, cfg: RunCfg) -> None:
    """Raise ConfigError where a preset for GPUs would run on a CPU that was not asked for."""
    if (
        cfg.env.num_envs < GPU_WORLDS
        or cfg.sim.device != "auto"
        or resolve_sim(cfg.sim)[1].type != "cpu"
    ):
        return
    cores = num_cores()
    time = duration(cfg.runner.num_env_steps / (CPU_SPEED * cores))
    if cfg.algorithm.takes_collectors:
        takes = f"take at least {time}, and much longer to learn from"
    else:
        takes = f"take about {time}"
    raise ConfigError(
        f"--preset {name}: {cfg.env.num_envs} worlds are meant for a GPU, and none can be used "
        f"here; on {cores} cores "
        f"its {cfg.runner.num_env_steps:,} env steps {takes}; say --device cpu to run them all "
        "the same, or "
        f"--preset {config.DEFAULT_PRESET}"
    )
