"""Unitree's controllers and models."""

from mapush.built_in import Extension
from mapush.commands import Command

EXTENSION = Extension(
    modules=("mapush.extensions.unitree.mjcf",),
    commands={
        "sim2sim": Command(
            "mapush.extensions.unitree.sim2sim:main",
            "metrics of a team or a gait here and with a maker's own robots",
        )
    },
)
