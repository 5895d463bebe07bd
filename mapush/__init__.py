"""Functions that build environments and register objects, tasks, algorithms and more.

A user's module with registrations is named with ``--import`` on the command line; an installed
package lists it under the entry point ``mapush.extensions``. See ``docs/guides/own.md``.
"""

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
    from harl_mapush.clients.entries import make

__all__ = [
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
]
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """Import ``make`` when it is asked for: the command line begins without torch."""
    if name == "make":
        from harl_mapush.clients.entries import make

        return make
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
