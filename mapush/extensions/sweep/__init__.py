"""Sweeps over settings."""

from mapush.built_in import Extension
from mapush.commands import Command

EXTENSION = Extension(
    commands={
        "sweep": Command(
            "mapush.extensions.sweep.command:main",
            "trainings over a space of settings, and their ranking",
        )
    }
)
