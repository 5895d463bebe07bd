"""Register objects, rewards, observations, tasks, robots and algorithms: ``import mapush``.

A module that calls these is named with ``--import`` on the command line of ``train``, ``test``,
``doctor`` and
``run_harl``. See ``examples/``.
"""

from mapush.registration import (
    register_algorithm,
    register_callback,
    register_object,
    register_observation,
    register_reward,
    register_robot,
    register_task,
)

__all__ = [
    "register_algorithm",
    "register_callback",
    "register_object",
    "register_observation",
    "register_reward",
    "register_robot",
    "register_task",
]
__version__ = "0.2.0"
