"""Other libraries' settings files. The training has a flag for every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mqe.extensions import Registry


class SettingsFile(NamedTuple):
    """A kind of settings file as a layer in a run's settings."""

    help: str
    # Takes the settings of the run file, those of the command line, and the path. Returns the
    # former with the file's values, and notices for the user.
    apply: Callable[[Mapping[str, Any], Mapping[str, Any], str], tuple[dict[str, Any], list[str]]]


# The flag of a kind is its name: ``--load_config FILE`` for ``load_config``.
SETTINGS_FILES: Registry[SettingsFile] = Registry("file of settings")
