"""Worlds that differ from those a team is measured in by default, as settings that a run can be
trained with.
"""

from __future__ import annotations

from typing import Any

from mqe.tasks.push.task import PushCfg

# Settings of ``task`` that make episodes easier or harder, as they are measured whatever a team was
# trained with.
USUAL: dict[str, Any] = {
    "close_share": 0.0,
    "tangled_share": 0.0,
    "success_radius": PushCfg.success_radius,
    "goal_distance": list(PushCfg.goal_distance),
    "episode_length_s": PushCfg.episode_length_s,
}
APART: dict[str, Any] = USUAL | {"spawn": "separated"}


def _nature(**values: float) -> dict[str, Any]:
    return {"task": APART, "env": {"randomize": values}}


CONDITIONS: dict[str, dict[str, Any]] = {
    "separated": {"task": APART},
    "independent": {"task": APART | {"spawn": "independent"}},
    "within 0.5 m": {"task": APART | {"success_radius": 0.5}},
    "mass x0.5": _nature(object_mass=0.5),
    "mass x2": _nature(object_mass=2.0),
    "mass x3": _nature(object_mass=3.0),
    "mass x4": _nature(object_mass=4.0),
    "friction x0.5": _nature(ground_friction=0.5),
    "friction x1.5": _nature(ground_friction=1.5),
    "object friction x0.5": _nature(object_friction=0.5),
    "object friction x1.5": _nature(object_friction=1.5),
    "goal 3 to 6 m, 40 s": {
        "task": APART | {"goal_distance": [3.0, 6.0], "episode_length_s": 40.0}
    },
    "observation noise 0.05": _nature(observation_noise=0.05),
    "command and joints 20 ms late": _nature(action_latency=0.02, command_latency=0.02),
    "command and joints 40 ms late": _nature(action_latency=0.04, command_latency=0.04),
    "kicks of 1 m/s every 2 s": _nature(kick_speed=1.0, kick_interval=2.0),
    "one robot stands for 2 s": _nature(freeze_time=2.0),
}
