"""Large modules of optional libraries, imported by the first test with a use for them.

Every test process collects all tests. MuJoCo Warp alone takes two seconds to import.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import pytest


def needs(library: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests without an optional library."""
    return pytest.mark.skipif(
        importlib.util.find_spec(library) is None, reason=f"{library} is an extra"
    )


needs_warp = needs("mujoco_warp")


class LazyModule:
    """A module whose first attribute in use imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Pytest asks every global whether it is a test or a mock.
        if name.startswith("__") or name == "_mock_name":
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


class AfterImport:
    """A finder that calls a function after the import of one module."""

    def __init__(self, name: str, prepare: Callable[[], None]) -> None:
        self._name = name
        self._prepare = prepare

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's usual specification with a longer import, or None for others."""
        if name != self._name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._prepare()

            spec.loader.exec_module = exec_module
        return spec


def after_import(name: str, prepare: Callable[[], None]) -> None:
    """Call ``prepare`` after the first import of the module ``name``."""
    sys.meta_path.insert(0, AfterImport(name, prepare))
