"""Scenes compiled once in a process."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from mqe.world import scene as scene_module
from mqe.world.robots import robots_of
from mqe.world.scene import Scene

_build_scene = scene_module.build_scene
_SIGNATURE = inspect.signature(_build_scene)
_SCENES: dict[Hashable, Scene] = {}


def remember_scenes() -> None:
    """Let ``build_scene`` return an earlier scene with equal arguments, and a copy of its model.

    Modules that were imported before keep the plain function.
    """
    scene_module.build_scene = _remembered


@functools.wraps(_build_scene)
def _remembered(*args: Any, **kwargs: Any) -> Scene:
    key = _key(args, kwargs)
    if key not in _SCENES:
        _SCENES[key] = _build_scene(*args, **kwargs)
    scene = _SCENES[key]
    return replace(scene, model=copy.copy(scene.model))  # who changes the spec copies it


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return the arguments with robots in place of their names."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    words = bound.arguments
    team = robots_of(words["robots"], words["num_robots"], words["model"])
    values = words | {"robots": team}
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value) for name, value in values.items()
    )
