"""This project's environments under other libraries' contracts."""

from typing import Any

from harl_mapush.clients.harl.harl_env import HarlEnv
from harl_mapush.clients.harl.mapush_env import MAPushEnv

__all__ = ["HarlEnv", "MAPushEnv"]


def __getattr__(name: str) -> Any:
    """Import members with a need for upstream HARL at their first use."""
    if name == "register_with_harl":
        from harl_mapush.clients.harl.harl_registration import register_with_harl

        return register_with_harl
    if name == "MAPushLogger":
        from harl_mapush.clients.harl.harl_registration import import_logger

        return import_logger()
    if name == "MAPushHAPPORunner":
        from harl_mapush.clients.harl.harl_registration import import_runner

        return import_runner()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
