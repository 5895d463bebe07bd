"""Names of our tasks for ``gymnasium.make`` and ``gymnasium.make_vec``.

``import mapush`` registers them if gymnasium is imported before it. In any order,
``gymnasium.make("mapush.gymnasium_ids:mapush/Push-v0")`` does. Torch is imported by the first
``make``.
"""

from typing import Any

import gymnasium

from mapush.built_in import extensions

TASKS = {"mapush/Push-v0": "go1push_mid"}
for _extension in extensions():
    TASKS.update(_extension.gymnasium_ids)


def make_world(task: str, **options: Any) -> Any:
    """Build one world. ``options`` are those of ``mapush.make``."""
    from harl_mapush.clients.gymnasium_env import GymnasiumWorld

    return GymnasiumWorld(make_worlds(task, num_envs=1, autoreset_mode="next_step", **options))


def make_worlds(task: str, **options: Any) -> Any:
    """Build ``num_envs`` worlds. ``options`` are those of ``mapush.make``."""
    from harl_mapush.clients.entries import make

    return make(task, client="gymnasium", **options)


for _name, _task in TASKS.items():
    gymnasium.register(_name, make_world, vector_entry_point=make_worlds, kwargs={"task": _task})
