"""The extensions in mapush itself: the folders in ``mapush/extensions``.

Each folder has a member ``EXTENSION``. Other packages use the entry point ``mapush.extensions``, as
``register`` does here.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from mapush.commands import Command

FOLDER = Path(__file__).with_name("extensions")


class Extension(NamedTuple):
    """Additions of an extension. Importing its package imports neither torch nor MuJoCo."""

    # Modules with registrations: tasks, simulators, formats, clients and more
    modules: tuple[str, ...] = ()
    commands: Mapping[str, Command] = MappingProxyType({})
    # Replacements for commands of release 0.3
    former_commands: Mapping[str, str] = MappingProxyType({})
    # Names of its tasks for ``gymnasium.make``
    gymnasium_ids: Mapping[str, str] = MappingProxyType({})
    # Further names of ``import mapush``, each with its ``MODULE:MEMBER`` or module.
    members: Mapping[str, str] = MappingProxyType({})
    # Words of ``mapush list``, each with the ``MODULE:FUNCTION`` that yields a table's lines.
    tables: Mapping[str, str] = MappingProxyType({})


def extensions() -> Iterator[Extension]:
    """Yield the extensions in name order."""
    for module in sorted(pkgutil.iter_modules([str(FOLDER)]), key=lambda module: module.name):
        yield importlib.import_module(f"mapush.extensions.{module.name}").EXTENSION


def register() -> None:
    """Import all extensions' modules and register their presets, as this package's entry point."""
    from harl_mapush.config import PRESETS  # imports torch

    for extension in extensions():
        for module in extension.modules:
            importlib.import_module(module)
    for file in FOLDER.glob("*/presets/*.yaml"):
        PRESETS.register(file.stem, file)
