"""Registries open to a test's own members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.callbacks.run_context import CALLBACKS
from harl_mapush.clients.entries import CLIENTS
from harl_mapush.runs.formats import FORMATS
from mapush.commands import COMMANDS
from mqe.registry import SIMULATORS, TASKS
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS


@contextmanager
def restored_registries(*more: dict) -> Iterator[None]:
    """Undo the registrations of the block in the core's registries and in ``more``."""
    registries: list[dict] = [
        OBJECTS,
        TASKS,
        SIMULATORS,
        ROBOTS,
        ALGORITHMS,
        CALLBACKS,
        FORMATS,
        CLIENTS,
        COMMANDS,
        *more,
    ]
    for entry in TASKS.values():
        if entry.terms is not None:
            registries += vars(entry.terms).values()
    before = [dict(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, members in zip(registries, before, strict=True):
            registry.clear()
            registry.update(members)
