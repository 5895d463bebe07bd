"""The world of a memory plan, built once in a process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harl_mapush import memory_plan
from mqe.registry import TASKS
from mqe.world.objects import OBJECTS


def remember_planned_worlds() -> None:
    """Build the one world of a memory plan once for equal settings."""
    build = memory_plan._one_world_setup
    setups: dict[Any, Any] = {}

    def remembered(cfg: Any) -> Any:
        task = cfg.task
        parts = (TASKS[task.name], dict(OBJECTS).get(getattr(task, "object", "")))
        key = (*map(id, parts), repr(task), repr(replace(cfg.env, num_envs=1)))
        if key not in setups:
            setups[key] = (parts, build(cfg))
        return setups[key][1]

    memory_plan._one_world_setup = remembered
