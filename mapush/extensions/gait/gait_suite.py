"""The suite ``gait``, the default for gaits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harl_mapush.config import RunCfg, register_suite
from harl_mapush.evaluation.suite_player import EXAMINATIONS, Examination
from mapush.extensions.gait.examination import evaluate_gait
from mapush.extensions.gait.gait_worlds import Walker
from mqe.controllers.gait import load_gait
from mqe.world.robots import ROBOTS


def examine(
    cfg: RunCfg, folder: Path, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """Examine a checkpoint's gait and return its metrics."""
    robot = cfg.env.robots if isinstance(cfg.env.robots, str) else cfg.env.robots[0]
    gait = load_gait(str(folder), device, ROBOTS.find(robot, "env.robots"))
    walker = Walker(gait, cfg.sim, cfg.runner.seed, robot, cfg.env.model)
    return evaluate_gait(walker, "push" if cfg.task.max_load else "velocity", say)


EXAMINATIONS.register("gait", Examination(examine, ("env.model", "env.imports")))
register_suite(Path(__file__).parent / "suites" / "gait.yaml", "go1_velocity")
