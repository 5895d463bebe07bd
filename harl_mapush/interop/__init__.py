"""What talks to upstream HARL: its runners as clients, its files, its recorded updates."""

from typing import Any

from harl_mapush.interop.register import import_logger, register_with_harl

__all__ = ["register_with_harl"]  # and MAPushLogger, which is made when it is asked for


def __getattr__(name: str) -> Any:
    if name == "MAPushLogger":  # it derives from upstream's logger, which may not be there
        return import_logger()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
