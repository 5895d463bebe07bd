"""The navigation task: a frozen team pushes an object around obstacles to its goal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from harl_mapush.config.suites import register_suite
from mapush.extensions.navigate.episode_report import REPORT
from mapush.extensions.navigate.frozen_team import settings_of
from mapush.extensions.navigate.settings import NAVIGATE_TERMS, NavigateCfg
from mapush.extensions.navigate.setup import make
from mqe.config import ConfigError
from mqe.controllers.frozen_policy import describe_policy
from mqe.extensions import Registry
from mqe.registry import TASKS
from mqe.tasks.entry import PushedObjects, TaskEntry

_SUITES = Path(__file__).parent / "suites"


def _without_shift(obs: Tensor) -> Tensor:
    """Return the actions of the planner's own sub-goals."""
    return obs.new_zeros(*obs.shape[:2], 2)


def _robots_of_team(cfg: NavigateCfg) -> Mapping[str, Any]:
    """Return the frozen team's robots and model.

    A team without a readable description has no known robots. Acting with it is an error.
    """
    try:
        team = describe_policy(cfg.team, "task.team")
    except ConfigError:
        return {}
    return {"robots": team.robots, "model": team.model}


def _objects(cfg: NavigateCfg) -> PushedObjects:
    team = describe_policy(cfg.team, "task.team")
    return PushedObjects.of([settings_of(cfg, team).pushed_object()], team.num_robots)


NAVIGATE = TaskEntry(
    NavigateCfg,
    make,
    REPORT,
    usual_env=_robots_of_team,
    objects=_objects,
    terms=NAVIGATE_TERMS,
    policies=Registry("script", {"planner": lambda env: _without_shift}),
    frozen_policies=("team",),
    files=("map",),
)
TASKS.register("go1push_upper", NAVIGATE)
for _file in _SUITES.glob("*.yaml"):
    register_suite(_file)
