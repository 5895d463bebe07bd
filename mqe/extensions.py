"""Registries open to anyone, and installed packages with entries for them."""

import functools
import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import TypeVar

from mqe.config import ConfigError, reason_of, unknown

GROUP = "mapush.extensions"
# The entry point of this package. An installation older than its checkout does not list it.
BUILT_IN = EntryPoint("built_in", "mapush.built_in:register", GROUP)

_Member = TypeVar("_Member")


class Registry(dict[str, _Member]):
    """Members of one kind by name. Built-in members join as a user's do."""

    def __init__(self, kind: str, members: Mapping[str, _Member] = MappingProxyType({})) -> None:
        """Begin with ``members``. ``kind`` names a member in error messages."""
        super().__init__(members)
        self.kind = kind

    def register(self, name: str, member: _Member) -> _Member:
        """Add a member and return it. Raise ConfigError if the name is taken or not valid.

        Adding an equal member once more is allowed, since a user's module may be imported twice.
        """
        if not re.fullmatch(r"[A-Za-z]\w*", name):
            raise ConfigError(
                f"{self.kind} {name!r}: the name must begin with a letter and have letters, "
                "digits and _ only; choose another"
            )
        if name in self and self[name] != member:
            raise ConfigError(f"{self.kind} {name!r}: the name is taken; choose another")
        self[name] = member
        return member

    def find(self, name: str, where: str) -> _Member:
        """Return a member. Raise ConfigError with the nearest name if there is none.

        ``where`` is the setting or flag with the name, for instance ``env.robots``.
        """
        if name not in self:
            raise ConfigError(f"{where}: {unknown(self.kind, name, self, is_open=True)}")
        return self[name]


@functools.cache
def load_extensions() -> None:
    """Load all entry points in the group ``mapush.extensions``, once.

    An entry point names a module for import, or a function without arguments to call. Either
    registers members. The program's entry points call this before they read settings, and so do
    their processes. Raises ConfigError if a package fails.
    """
    entries = list(entry_points(group=GROUP))
    is_listed = any(entry.value == BUILT_IN.value for entry in entries)
    if not is_listed and find_spec(BUILT_IN.module) is not None:
        entries.append(BUILT_IN)
    for entry in entries:
        try:
            loaded = entry.load()
            if callable(loaded):
                loaded()
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            reason = reason_of(error)
            raise ConfigError(
                f"the extension {entry.name!r} of the package {package!r} failed "
                f"({type(error).__name__}: {reason}); update the package, or uninstall it"
            ) from error
