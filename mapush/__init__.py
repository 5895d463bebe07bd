"""The one import of scripts: environments, teams, and functions for registering objects and more.

``--import`` names a user's module with registrations on the command line. An installed package
lists it under the entry point ``mapush.extensions``. See ``docs/guides/own.md``.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harl_mapush.algorithms.happo import Happo, HappoCfg
    from harl_mapush.clients import MAPushEnv, register_with_harl
    from harl_mapush.clients.entries import load_team, make
    from harl_mapush.evaluation.calculator import evaluate
    from harl_mapush.runs.checkpoint import resolve as find_checkpoint
    from mapush.registration import (
        register_algorithm,
        register_callback,
        register_client,
        register_command,
        register_format,
        register_metric,
        register_object,
        register_observation,
        register_reward,
        register_robot,
        register_simulator,
        register_state,
        register_suite,
        register_task,
        register_termination,
    )
    from mqe.config import option
    from mqe.controllers.gait import GaitController, load_team_gait
    from mqe.tasks.episode_report import Report
    from mqe.tasks.push import PushCfg
    from mqe.tasks.push.features import StepFeatures
    from mqe.tasks.terms import (
        MeasureTerm,
        Memory,
        MetricTerm,
        ObservationTerm,
        RewardTerm,
        TerminationTerm,
        Worlds,
    )
    from mqe.tasks.walking import WalkingCfg, WalkingFeatures, WalkingTask
    from mqe.viewer.video import record
    from mqe.world.objects import GeomCfg, ObjectCfg
    from mqe.world.robots import RobotCfg
    from mqe.world.scene import sliding_force

_REGISTRATIONS = (
    "register_algorithm",
    "register_callback",
    "register_client",
    "register_command",
    "register_format",
    "register_metric",
    "register_object",
    "register_observation",
    "register_reward",
    "register_robot",
    "register_simulator",
    "register_state",
    "register_suite",
    "register_task",
    "register_termination",
)
# Imported when they are first used: the command line begins without torch.
_MEMBERS = {
    "GaitController": "mqe.controllers.gait:GaitController",
    "GeomCfg": "mqe.world.objects:GeomCfg",
    "Happo": "harl_mapush.algorithms.happo:Happo",
    "HappoCfg": "harl_mapush.algorithms.happo:HappoCfg",
    "MAPushEnv": "harl_mapush.clients:MAPushEnv",
    "MeasureTerm": "mqe.tasks.terms:MeasureTerm",
    "Memory": "mqe.tasks.terms:Memory",
    "MetricTerm": "mqe.tasks.terms:MetricTerm",
    "ObjectCfg": "mqe.world.objects:ObjectCfg",
    "ObservationTerm": "mqe.tasks.terms:ObservationTerm",
    "PushCfg": "mqe.tasks.push:PushCfg",
    "Report": "mqe.tasks.episode_report:Report",
    "RewardTerm": "mqe.tasks.terms:RewardTerm",
    "RobotCfg": "mqe.world.robots:RobotCfg",
    "StepFeatures": "mqe.tasks.push.features:StepFeatures",
    "TerminationTerm": "mqe.tasks.terms:TerminationTerm",
    "WalkingCfg": "mqe.tasks.walking:WalkingCfg",
    "WalkingFeatures": "mqe.tasks.walking:WalkingFeatures",
    "WalkingTask": "mqe.tasks.walking:WalkingTask",
    "Worlds": "mqe.tasks.terms:Worlds",
    "evaluate": "harl_mapush.evaluation.calculator:evaluate",
    "find_checkpoint": "harl_mapush.runs.checkpoint:resolve",
    "load_team": "harl_mapush.clients.entries:load_team",
    "load_team_gait": "mqe.controllers.gait:load_team_gait",
    "make": "harl_mapush.clients.entries:make",
    "option": "mqe.config:option",
    "record": "mqe.viewer.video:record",
    **{name: f"mapush.registration:{name}" for name in _REGISTRATIONS},
    "register_with_harl": "harl_mapush.clients:register_with_harl",
    "sliding_force": "mqe.world.scene:sliding_force",
}
__all__ = [
    "GaitController",
    "GeomCfg",
    "Happo",
    "HappoCfg",
    "MAPushEnv",
    "MeasureTerm",
    "Memory",
    "MetricTerm",
    "ObjectCfg",
    "ObservationTerm",
    "PushCfg",
    "Report",
    "RewardTerm",
    "RobotCfg",
    "StepFeatures",
    "TerminationTerm",
    "WalkingCfg",
    "WalkingFeatures",
    "WalkingTask",
    "Worlds",
    "evaluate",
    "find_checkpoint",
    "load_team",
    "load_team_gait",
    "make",
    "option",
    "record",
    "register_algorithm",
    "register_callback",
    "register_client",
    "register_command",
    "register_format",
    "register_metric",
    "register_object",
    "register_observation",
    "register_reward",
    "register_robot",
    "register_simulator",
    "register_state",
    "register_suite",
    "register_task",
    "register_termination",
    "register_with_harl",
    "sliding_force",
]
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """Import a class or a function, ours or an extension's, when it is first asked for."""
    members = _MEMBERS if name in _MEMBERS else _extension_members(name)
    if name not in members:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, member = members[name].partition(":")
    return getattr(importlib.import_module(module), member)


def _extension_members(name: str) -> Mapping[str, str]:
    """Return the members of the extension with ``name``, an empty mapping without one."""
    if name.startswith("_"):  # the import system looks for such names
        return {}
    from mapush.built_in import extensions

    offers = (extension.members for extension in extensions())
    return next((members for members in offers if name in members), {})
