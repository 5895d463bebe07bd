"""``MAPushHAPPORunner``, upstream HARL's runner of HAPPO in these environments."""

from typing import Any

from harl_mapush.clients.harl.harl_registration import import_runner


def __getattr__(name: str) -> Any:
    """Return ``MAPushHAPPORunner``. Raise ConfigError without HARL."""
    if name != "MAPushHAPPORunner":
        raise AttributeError(name)
    return import_runner()
