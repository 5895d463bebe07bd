"""The interface to upstream HARL: its runners as clients, its files, its recorded updates."""

from typing import Any

_LATE = ("MAPushLogger", "register_with_harl")  # made when they are asked for: HARL's files need no runner of HARL's


def __getattr__(name: str) -> Any:
    if name in _LATE:
        from harl_mapush.interop import register

        return register.register_with_harl if name == "register_with_harl" else register.import_logger()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
