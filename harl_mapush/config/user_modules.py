"""The user's modules, named by ``--import``."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mqe.config import ConfigError
from mqe.extensions import load_extensions

IMPORTED: list[str] = []  # names, in this process


def import_modules(names: Sequence[str], flag: str = "--import") -> None:
    """Load installed extensions, and import a user's modules, also from the current folder.

    Raises ConfigError for a missing module. ``flag`` is the flag with its name.
    """
    load_extensions()
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(
                f"{flag} {name!r}: must be the dotted name of a module, as in my_package.my_module"
            )
    folder = os.getcwd()
    for name in names:
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a missing dependency of the module
            raise ConfigError(
                f"{flag} {name}: there is no such module in {folder} or on PYTHONPATH"
            ) from None
        except SyntaxError as error:
            raise ConfigError(
                f"{flag} {name}: {error.filename}, line {error.lineno}: {error.msg}"
            ) from None
        if name not in IMPORTED:
            IMPORTED.append(name)


def check_imports(env: Any) -> None:
    """Raise ConfigError if settings need a module without an import so far.

    Files of settings never import a module.
    """
    names = env.get("imports") if isinstance(env, Mapping) else None
    if not isinstance(names, (list, tuple)):
        return
    missing = [name for name in names if name not in IMPORTED]
    if missing:
        raise ConfigError(
            "env.imports: these settings need "
            f"{' '.join(f'--import {name}' for name in missing)}, which runs the code "
            "of that module; name it on the command line"
        )
