"""The one import of scripts: environments, teams, and what registers objects, tasks and more.

A user's module with registrations is named with ``--import`` on the command line; an installed
package lists it under the entry point ``mapush.extensions``. See ``docs/guides/own.md``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mapush.registration import (
    register_algorithm,
    register_callback,
    register_client,
    register_command,
    register_format,
    register_metric,
    register_object,
    register_observation,
    register_planner,
    register_reward,
    register_robot,
    register_simulator,
    register_state,
    register_task,
    register_termination,
)

if TYPE_CHECKING:
    from harl_mapush.clients import MAPushEnv, register_with_harl
    from harl_mapush.clients.entries import load_team, make
    from harl_mapush.evaluation.calculator import evaluate
    from harl_mapush.runs.checkpoint import resolve as find_checkpoint
    from mqe.world.objects import GeomCfg, ObjectCfg
    from mqe.world.robots import RobotCfg

# Imported when they are asked for: the command line begins without torch.
_MEMBERS = {
    "GeomCfg": "mqe.world.objects:GeomCfg",
    "MAPushEnv": "harl_mapush.clients:MAPushEnv",
    "ObjectCfg": "mqe.world.objects:ObjectCfg",
    "RobotCfg": "mqe.world.robots:RobotCfg",
    "evaluate": "harl_mapush.evaluation.calculator:evaluate",
    "find_checkpoint": "harl_mapush.runs.checkpoint:resolve",
    "load_team": "harl_mapush.clients.entries:load_team",
    "make": "harl_mapush.clients.entries:make",
    "register_with_harl": "harl_mapush.clients:register_with_harl",
}
__all__ = [
    "GeomCfg",
    "MAPushEnv",
    "ObjectCfg",
    "RobotCfg",
    "evaluate",
    "find_checkpoint",
    "load_team",
    "make",
    "register_algorithm",
    "register_callback",
    "register_client",
    "register_command",
    "register_format",
    "register_metric",
    "register_object",
    "register_observation",
    "register_planner",
    "register_reward",
    "register_robot",
    "register_simulator",
    "register_state",
    "register_task",
    "register_termination",
    "register_with_harl",
]
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """Import a class or a function when it is first asked for."""
    if name not in _MEMBERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, member = _MEMBERS[name].partition(":")
    return getattr(importlib.import_module(module), member)
