"""The script ``scripted_walk`` of the push task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from mapush.extensions.pivoting.pivoting_team import PivotingTeam, is_round
from mqe.config import ConfigError
from mqe.registry import TASKS
from mqe.tasks.push.scripted import scripted_team

if TYPE_CHECKING:
    from mqe.env.environment import MultiAgentEnv
    from mqe.tasks.push.task import PushTask


def scripted_walk(env: MultiAgentEnv) -> Callable[[Tensor], Tensor]:
    """Return a script for all robots walking the object, side by side at one end of a side.

    A round object is pushed straight, with rams.
    """
    task: PushTask = env.task  # pyright: ignore[reportAssignmentType]
    if task.cfg.shapes is not None:
        raise ConfigError(
            f"scripted_walk plans for one object, and task.shapes={task.cfg.shapes} differs from "
            "world to world; say --object NAME, or take scripted_team"
        )
    obj = task.constants.object
    if not is_round(obj) and any(geom.type == "cylinder" for geom in obj.geoms):
        return scripted_team(env)
    return PivotingTeam(task, env.decision_period, env.device)


_SCRIPTS = TASKS["go1push_mid"].policies
_SCRIPTS.register("scripted_walk", scripted_walk)
# Viewers without a checkpoint show the last script.
_SCRIPTS["scripted_team"] = _SCRIPTS.pop("scripted_team")
