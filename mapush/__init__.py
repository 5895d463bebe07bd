"""The one import of scripts: environments, teams, and functions for registering objects and more.

``--import`` names a user's module with registrations on the command line. An installed package
lists it under the entry point ``mapush.extensions``. See ``docs/guides/own.md``.
"""

import ast
import functools
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__version__ = "0.3.0"


@functools.cache
def _members() -> dict[str, str]:
    """Return MODULE:MEMBER for each name of the stub ``__init__.pyi``."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def __getattr__(name: str) -> Any:
    """Import a class or a function, ours or an extension's, at its first use.

    The command line begins without torch.
    """
    if name == "__all__":
        return sorted(_members())
    if name.startswith("_"):  # the import system looks for such names
        raise AttributeError(name)
    members = _members() if name in _members() else _extension_members(name)
    if name not in members:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pkgutil.resolve_name(members[name])


def _extension_members(name: str) -> Mapping[str, str]:
    """Return the members of the extension with ``name``, an empty mapping without one."""
    from mapush.built_in import extensions

    offers = (extension.members for extension in extensions())
    return next((members for members in offers if name in members), {})


if "gymnasium" in sys.modules:
    importlib.import_module("mapush.gymnasium_ids")
