"""The sections of a run's settings."""

from dataclasses import dataclass, fields
from typing import Any

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.run_settings import LoggerCfg, RunnerCfg
from mqe.extensions import Registry
from mqe.registry import TASKS, EnvCfg, SimCfg

DEFAULT_TASK = "go1push_mid"
DEFAULT_ALGORITHM = "happo"


@dataclass(frozen=True)
class RunCfg:
    """A run's settings, section by section."""

    env: EnvCfg
    sim: SimCfg
    task: Any
    network: NetworkCfg
    algorithm: Any
    runner: RunnerCfg
    logger: LoggerCfg


SECTIONS = tuple(field.name for field in fields(RunCfg))
SECTION_CLASSES: dict[str, type] = {
    "env": EnvCfg,
    "sim": SimCfg,
    "network": NetworkCfg,
    "runner": RunnerCfg,
    "logger": LoggerCfg,
}
# Sections with a class by the name in them.
NAMED_SECTIONS: dict[str, Registry[Any]] = {"task": TASKS, "algorithm": ALGORITHMS}


def all_classes() -> dict[str, type]:
    """Return all sections' classes, for the default task and algorithm."""
    return SECTION_CLASSES | {
        "task": TASKS[DEFAULT_TASK].cfg,
        "algorithm": ALGORITHMS[DEFAULT_ALGORITHM].cfg,
    }
